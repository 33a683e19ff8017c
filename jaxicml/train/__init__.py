"""What trains, maps over replications, and shards."""

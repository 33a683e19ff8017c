"""The methods, one folder per paper. Import the one you need."""

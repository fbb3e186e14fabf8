"""Formats of files and answers.

bounds.py        bounds of bodies that users send, and of lists and models in them, checked before anything is built
jsonl.py         rows of a file for training
strict_json.py   JSON as RFC 8259 has it, and text that UTF-8 can hold
toml_file.py     TOML files whose tables have one type
toml_reader.py   TOML bodies that users send
step_times.py    times of many steps as bytes
cores.py         lists of processor cores
wrong_values.py  what is wrong with a value, in plain words
"""

"""Formats of files and answers.

jsonl.py         rows of a file for training
strict_json.py   JSON as RFC 8259 has it
toml_file.py     TOML files whose tables have one type
step_times.py    times of many steps as bytes
wrong_values.py  what is wrong with a value, in plain words
"""

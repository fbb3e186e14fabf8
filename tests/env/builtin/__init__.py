"""Shipped environments: rows, grading, cheating.

`calculator`                                     test_calculator.py
code graded by unit tests                        test_code.py
code rows of MBPP's form                         test_code_rows.py
`compose` and its held-out pairs                 test_compose.py
`exact_words`                                    test_exact_words.py
math problems, and what counts as equal          test_math_problems.py
`search`, and questions that need it twice       test_multi_hop.py
reasoning-gym's data sets                        test_reasoning_gym.py
options of reasoning-gym's data sets             test_reasoning_gym_options.py
replies that may reach a scorer which evaluates  test_reply_filter.py
the synthetic environment                        test_synthetic.py

Helpers: math_verdicts.py (answers with their verdicts), word_problems.py (worked solutions).
"""

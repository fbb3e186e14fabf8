"""Benchmarks: their arithmetic, and whether they run.

every benchmark from end to end, on a small case  test_main_paths.py
numbers in the pages are those of bench/results   test_quotes.py
results computed from measurements                test_arithmetic.py
`bench.agentic`, and its tap on messages          test_agentic.py
time that parsers of hostile replies take         test_grading.py
parts of `bench.gpu`                               test_gpu.py
`bench.learning`: intervals, runs, its control    test_learning.py
simulator of shared accelerators                  test_plex.py
kills and cuts on a shared accelerator            test_plex_faults.py
figures of real runs on a shared accelerator      test_plex_real.py
benchmark of tiers, and hidden memory             test_tiers.py
sums of `bench.coserving`                         test_coserving.py
its days, real and simulated                      test_coserving_http.py, test_coserving_simulator.py
the trainer's benchmarks measure the real step    test_trainer.py
"""

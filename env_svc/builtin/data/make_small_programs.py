"""Makes small_programs.jsonl: `python make_small_programs.py`. Short functions with their tests, in the format of MBPP."""

import json
from pathlib import Path
from typing import Any

Problem = tuple[str, str, list[str]]

PROBLEMS: list[Problem] = [
    ("doubles a number", "def double(n):\n    return 2 * n", ["double(2) == 4", "double(-3) == -6", "double(0) == 0"]),
    ("adds two numbers", "def add(a, b):\n    return a + b", ["add(1, 2) == 3", "add(-1, 1) == 0", "add(10, 5) == 15"]),
    ("squares a number", "def square(n):\n    return n * n", ["square(3) == 9", "square(-4) == 16", "square(1) == 1"]),
    ("gives the larger of two numbers", "def larger(a, b):\n    return max(a, b)", ["larger(1, 2) == 2", "larger(5, -5) == 5"]),
    ("tells whether a number is even", "def is_even(n):\n    return n % 2 == 0", ["is_even(4)", "not is_even(7)", "is_even(0)"]),
    (
        "reverses a text",
        "def reverse(text):\n    return text[::-1]",
        ["reverse('abc') == 'cba'", "reverse('') == ''", "reverse('ab') == 'ba'"],
    ),
    (
        "counts the vowels of a text",
        "def vowels(text):\n    return sum(c in 'aeiou' for c in text)",
        ["vowels('banana') == 3", "vowels('xyz') == 0"],
    ),
    (
        "sums a list of numbers",
        "def total(numbers):\n    return sum(numbers)",
        ["total([1, 2, 3]) == 6", "total([]) == 0", "total([-1, 1]) == 0"],
    ),
    (
        "gives the largest number of a list",
        "def largest(numbers):\n    return max(numbers)",
        ["largest([3, 9, 2]) == 9", "largest([-5, -1]) == -1"],
    ),
    ("gives the last item of a list", "def last(items):\n    return items[-1]", ["last([1, 2, 3]) == 3", "last(['a']) == 'a'"]),
    (
        "gives a list without its duplicates, in order",
        "def unique(items):\n    return list(dict.fromkeys(items))",
        ["unique([1, 2, 1]) == [1, 2]", "unique([]) == []"],
    ),
    (
        "gives the factorial of a number",
        "def factorial(n):\n    return 1 if n < 2 else n * factorial(n - 1)",
        ["factorial(5) == 120", "factorial(0) == 1", "factorial(3) == 6"],
    ),
    (
        "gives the n-th Fibonacci number, from 0 and 1",
        "def fib(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a",
        ["fib(0) == 0", "fib(1) == 1", "fib(10) == 55"],
    ),
    (
        "gives the greatest common divisor",
        "def gcd(a, b):\n    while b:\n        a, b = b, a % b\n    return a",
        ["gcd(12, 18) == 6", "gcd(7, 5) == 1", "gcd(9, 0) == 9"],
    ),
    (
        "tells whether a number is prime",
        "def is_prime(n):\n    return n > 1 and all(n % d for d in range(2, n))",
        ["is_prime(7)", "not is_prime(9)", "not is_prime(1)", "is_prime(2)"],
    ),
    (
        "sums the digits of a number",
        "def digit_sum(n):\n    return sum(map(int, str(n)))",
        ["digit_sum(123) == 6", "digit_sum(0) == 0", "digit_sum(99) == 18"],
    ),
    (
        "tells whether a text reads the same backwards",
        "def is_palindrome(text):\n    return text == text[::-1]",
        ["is_palindrome('anna')", "not is_palindrome('ab')", "is_palindrome('')"],
    ),
    (
        "counts the words of a text",
        "def words(text):\n    return len(text.split())",
        ["words('one two') == 2", "words('') == 0", "words(' a  b c ') == 3"],
    ),
    (
        "gives the mean of a list of numbers",
        "def mean(numbers):\n    return sum(numbers) / len(numbers)",
        ["abs(mean([1, 2]) - 1.5) < 1e-9", "abs(mean([4]) - 4) < 1e-9"],
    ),
    (
        "sorts a list, largest first",
        "def descending(numbers):\n    return sorted(numbers, reverse=True)",
        ["descending([1, 3, 2]) == [3, 2, 1]", "descending([]) == []"],
    ),
    (
        "counts how often each letter occurs",
        "def letters(text):\n    found = {}\n    for c in text:\n        found[c] = found.get(c, 0) + 1\n    return found",
        ["letters('aab') == {'a': 2, 'b': 1}", "letters('') == {}"],
    ),
    (
        "gives the numbers from 1 to n",
        "def count_to(n):\n    return list(range(1, n + 1))",
        ["count_to(3) == [1, 2, 3]", "count_to(0) == []"],
    ),
    (
        "flattens a list of lists",
        "def flat(lists):\n    return [item for one in lists for item in one]",
        ["flat([[1], [2, 3]]) == [1, 2, 3]", "flat([]) == []"],
    ),
    (
        "gives the common items of two lists as a set",
        "def common(a, b):\n    return set(a) & set(b)",
        ["common([1, 2], [2, 3]) == {2}", "common([1], [2]) == set()"],
    ),
]


def rows() -> list[dict[str, Any]]:
    return [
        {"text": f"Write a Python function that {what}.", "code": code, "test_list": [f"assert {test}" for test in tests]}
        for what, code, tests in PROBLEMS
    ]


if __name__ == "__main__":
    Path(__file__).with_name("small_programs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))

"""Reads arithmetic and algebra without running it. Five of reasoning-gym's scorers hand the answer to
sympy's parser, which evaluates it as Python; these readers take its place.

Promises: what is not in the grammar is a ValueError. The grammar has numbers in decimal notation,
+ - * / **, parentheses, and for algebra single symbols and the elementary functions. It has no comments,
no other notation of numbers and no calculus, by which an answer could hide its numbers or hand back the
question. A result is bounded before it is computed.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import sympy

MAX_CHARACTERS = 4096
MAX_EXPONENT = 1000
MAX_BITS = 8192
"""Of a power of numbers."""

_ARITHMETIC = re.compile(r"[0-9.+\-*/() ]+")
_ALGEBRA = re.compile(r"[A-Za-z0-9.+\-*/() ]+")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+")
_SYMBOL = re.compile(r"[A-Za-z]")
_FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "Abs": sympy.Abs,
    "acos": sympy.acos,
    "acosh": sympy.acosh,
    "asin": sympy.asin,
    "asinh": sympy.asinh,
    "atan": sympy.atan,
    "atanh": sympy.atanh,
    "cos": sympy.cos,
    "cosh": sympy.cosh,
    "cot": sympy.cot,
    "csc": sympy.csc,
    "exp": sympy.exp,
    "ln": sympy.ln,
    "log": sympy.log,
    "sec": sympy.sec,
    "sin": sympy.sin,
    "sinh": sympy.sinh,
    "sqrt": sympy.sqrt,
    "tan": sympy.tan,
    "tanh": sympy.tanh,
}
_CONSTANTS: Mapping[str, Any] = {"pi": sympy.pi, "E": sympy.E}
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def read_arithmetic(text: str) -> Any:
    """The value of arithmetic on numbers, as a sympy number; division is exact. Raises ValueError."""
    return _read(text, _ARITHMETIC, None)


def read_algebra(text: str, local_dict: Mapping[str, Any] | None = None) -> Any:
    """A sympy expression. `local_dict` holds the symbols that mean something; any other letter is a symbol
    of its own. Raises ValueError.
    """
    return _read(text, _ALGEBRA, local_dict or {})


def _read(text: str, alphabet: re.Pattern[str], symbols: Mapping[str, Any] | None) -> Any:
    text = text.strip()
    if len(text) > MAX_CHARACTERS or not alphabet.fullmatch(text):
        raise ValueError("not an expression")
    try:
        return _value(ast.parse(text, mode="eval").body, text, symbols)
    except (SyntaxError, RecursionError, MemoryError, ArithmeticError, TypeError) as error:
        raise ValueError(f"not an expression: {type(error).__name__}") from error


def _value(node: ast.expr, text: str, symbols: Mapping[str, Any] | None) -> Any:
    match node:
        case ast.Constant(value=int() | float()):
            return _number(text[node.col_offset : node.end_col_offset])
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, text, symbols)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, text, symbols)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left, text, symbols), _value(right, text, symbols))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, text, symbols), _value(right, text, symbols))
        case ast.Name(id=name) if symbols is not None:
            return _named(name, symbols)
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if symbols is not None:
            if name in _FUNCTIONS:
                return _FUNCTIONS[name](_value(argument, text, symbols))
    raise ValueError("not in the grammar")


def _number(written: str) -> Any:
    # By how it is written, not by its value: 0b11 and 1_1 would hide a number from who counts them.
    if not _NUMBER.fullmatch(written):
        raise ValueError("not a decimal number")
    return sympy.Float(written) if "." in written else sympy.Integer(int(written))


def _named(name: str, symbols: Mapping[str, Any]) -> Any:
    if name in symbols:
        return symbols[name]
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    if _SYMBOL.fullmatch(name):
        return sympy.Symbol(name)
    raise ValueError("not a known name")


def _power(base: Any, exponent: Any) -> Any:
    if exponent.is_number:
        if not (exponent.is_Rational or exponent.is_Float) or abs(exponent) > MAX_EXPONENT:
            raise ValueError("exponent out of range")
        if base.is_Rational and max(abs(base.p), base.q).bit_length() * abs(exponent) > MAX_BITS:
            raise ValueError("power out of range")
    return base**exponent

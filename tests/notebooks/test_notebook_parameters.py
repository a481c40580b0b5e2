"""What a parameters cell declares, and which values fit."""

import pathlib

import numpy as np
import pytest

from dflash_lab.notebooks import check_parameters, read_parameters
from dflash_lab.notebooks.parameters import coerce, plain_value


def test_reads_names_types_defaults_and_meanings(make_notebook):
    path = make_notebook(
        "n",
        "1",
        parameters='data_path: str = ""  # where the data is, path\n'
        "bounds: list[int] = [\n    0,\n    770,\n]  # bucket bounds, tokens\n"
        'rate: float = -1  # learning rate\nmark: str = "a # b"  # text',
    )
    declared = read_parameters(path)
    assert list(declared) == ["data_path", "bounds", "rate", "mark"]
    assert declared["bounds"].default == [0, 770]
    assert declared["bounds"].annotation == "list[int]"
    assert declared["bounds"].meaning == "bucket bounds, tokens"
    assert declared["rate"].default == -1.0
    assert declared["mark"].default == "a # b"
    assert declared["mark"].meaning == "text"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("count = 3", "line 1: `count = 3` is not of the form `name: type = literal  # meaning, unit`"),
        ("count: int", "is not of the form"),
        ("import numpy", "is not of the form"),
        ("count: int = 1 + 1", "'count' is computed; only plain literals are legal"),
        ("count: int | None = None", "type 'int | None' of 'count' is not legal; legal types: str, int, float"),
        ("count: int = 1\ncount: int = 2", "line 2: 'count' stands there twice"),
        ('count: int = "1"', "'count' is annotated int but its value '1' is text"),
        (
            "count: int = 1.5",
            "parameter 'count' is annotated int, got 1.5 (float); legal: a whole number such as 32768",
        ),
        ("count: int = None", "parameter 'count' got None (NoneType)"),
        ("count: int = (", "line 1: '(' was never closed"),
    ],
)
def test_refuses_what_is_not_an_annotated_literal(make_notebook, code, message):
    with pytest.raises(ValueError) as error:
        read_parameters(make_notebook("n", "1", parameters=code))
    assert message in str(error.value)


def test_needs_exactly_one_tagged_cell(make_notebook):
    with pytest.raises(ValueError, match=r"none.ipynb has no cell tagged 'parameters'; it needs exactly one"):
        read_parameters(make_notebook("none", "1", parameters=None))
    with pytest.raises(ValueError, match=r"two.ipynb has 2 cells tagged 'parameters'; it needs exactly one"):
        read_parameters(make_notebook("two", "b: int = 1", tags={0: ["parameters"]}))


def test_names_a_missing_or_foreign_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="no notebook at .*missing.ipynb"):
        read_parameters(tmp_path / "missing.ipynb")
    (tmp_path / "text.ipynb").write_text("hello")
    with pytest.raises(ValueError, match="text.ipynb is not a notebook"):
        read_parameters(tmp_path / "text.ipynb")
    (tmp_path / "old.ipynb").write_text('{"nbformat": 3, "worksheets": []}')
    with pytest.raises(ValueError, match="old.ipynb is not a notebook in nbformat 4"):
        read_parameters(tmp_path / "old.ipynb")


def test_misspelt_name_gets_the_nearest_and_the_list(make_notebook):
    declared = read_parameters(make_notebook("n", "1", parameters="token_budget: int = 1  # b\nseed: int = 0  # s"))
    with pytest.raises(ValueError) as error:
        check_parameters(declared, {"tokn_budget": 2}, notebook="n.ipynb")
    assert str(error.value) == (
        "notebook n.ipynb has no parameter 'tokn_budget'; did you mean 'token_budget'? Legal names: token_budget, seed"
    )


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        ("1e-4", "float", 1e-4),
        (2, "float", 2.0),
        ("32768", "int", 32768),
        ("49_152", "int", 49152),
        (np.int64(7), "int", 7),
        (np.float32(0.5), "float", 0.5),
        ("true", "bool", True),
        ("False", "bool", False),
        (np.bool_(True), "bool", True),
        ("12", "str", "12"),
        (pathlib.Path("a") / "b", "str", "a/b"),
        ((0, 770), "list[int]", [0, 770]),
        (np.array([0, 770]), "list[int]", [0, 770]),
        ("[0, 770]", "list[int]", [0, 770]),
        ("0,770,8192", "list[int]", [0, 770, 8192]),
        (["1e-4", 1], "list[float]", [1e-4, 1.0]),
        (("a", pathlib.Path("b")), "list[str]", ["a", "b"]),
        ("['a', 'b']", "list[str]", ["a", "b"]),
        ([1, "a", True], "list", [1, "a", True]),
        ({"a": (1, np.int8(2))}, "dict", {"a": [1, 2]}),
        ('{"a": 1}', "dict[str, float]", {"a": 1.0}),
        ([[1], [2]], "list[list[int]]", [[1], [2]]),
    ],
)
def test_brings_values_to_the_annotated_type(value, annotation, expected):
    fitted = coerce(value, annotation, key="x")
    assert fitted == expected
    assert type(fitted) is type(expected)


@pytest.mark.parametrize(
    ("value", "annotation", "legal"),
    [
        ("12.5", "int", "a whole number such as 32768"),
        (12.0, "int", "a whole number"),
        (True, "int", "a whole number"),
        (10**400, "float", "a finite number such as 1e-4"),
        ("abc", "float", "a finite number"),
        ("nan", "float", "a finite number"),
        (True, "float", "a finite number"),
        (1, "bool", "true or false"),
        ("yes", "bool", "true or false"),
        (3, "str", "text"),
        ("a,b", "list[str]", "a list such as [0, 770]"),
        ("[0", "list[int]", "a list such as"),
        (7, "list[int]", "a list such as"),
        ([1, "x"], "list[int]", "a whole number"),
        ("[1]", "dict", "a mapping with text keys"),
    ],
)
def test_refuses_what_does_not_fit_naming_key_and_legal(value, annotation, legal):
    with pytest.raises(ValueError) as error:
        coerce(value, annotation, key="speed")
    assert "parameter 'speed'" in str(error.value)
    assert legal in str(error.value)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), [1.0, float("nan")], np.float64("nan"), np.array([np.inf])]
)
def test_refuses_numbers_that_are_not_finite(value):
    with pytest.raises(ValueError, match="parameter 'speed' got .*; only finite numbers are legal"):
        plain_value(value, key="speed")


@pytest.mark.parametrize("value", [None, {1, 2}, b"bytes", object(), [None]])
def test_refuses_types_that_a_notebook_cannot_carry(value):
    with pytest.raises(ValueError, match="parameter 'speed' got .*; legal are str, int, float, bool, lists and dicts"):
        plain_value(value, key="speed")


def test_refuses_keys_that_are_not_text():
    with pytest.raises(ValueError, match=r"parameter 'speed' got a mapping with keys \[1\]; only text keys are legal"):
        plain_value({1: "a"}, key="speed")

"""The notebooks of the documents run, and say what they say on their pages."""

import pathlib

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((pathlib.Path(__file__).parents[3] / "docs" / "notebooks").glob("*.ipynb"))


def said(notebook):
    """What cells print, by cell; pictures depend on the version of what draws them."""
    return [
        "".join(output.text for output in cell.outputs if output.output_type == "stream")
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def test_there_is_a_notebook():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_says_again_what_its_page_says(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    wanted = said(notebook)
    assert any(wanted), "a notebook without output shows nothing"
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": tmp_path}}).execute()
    assert said(notebook) == wanted
    pictures = [o for cell in notebook.cells for o in cell.get("outputs", []) if "image/png" in o.get("data", {})]
    assert pictures, "the figure is drawn"

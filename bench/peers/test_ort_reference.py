"""The reference against closed forms: `python3 -m unittest discover bench/peers`. Needs onnx too, to make its model."""

import contextlib
import io
import json
import tempfile
import unittest
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, save

import ort_reference


def running_sum_model(path):
    """x [B,3], gain [], s [2,B,3]: s_next = s + x on both planes, y = gain * s_next of plane 0, [B,3]."""
    nodes = [
        helper.make_node("Add", ["s", "x"], ["s_next"]),
        helper.make_node("Constant", [], ["plane"], value=helper.make_tensor("plane", TensorProto.INT64, [], [0])),
        helper.make_node("Gather", ["s_next", "plane"], ["sum"], axis=0),
        helper.make_node("Cast", ["gain"], ["gain_f32"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["sum", "gain_f32"], ["y"]),
    ]
    inputs = [("x", TensorProto.FLOAT, ["B", 3]), ("gain", TensorProto.INT64, []), ("s", TensorProto.FLOAT, [2, "B", 3])]
    outputs = [("y", TensorProto.FLOAT, ["B", 3]), ("s_next", TensorProto.FLOAT, [2, "B", 3])]

    def infos(values):
        return [helper.make_tensor_value_info(*value) for value in values]

    graph = helper.make_graph(nodes, "running_sum", infos(inputs), infos(outputs))
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


class Reference(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.model = self.folder / "running_sum.onnx"
        running_sum_model(self.model)

    def run_script(self, *options, rows=None):
        """Exit status, stdout, stderr."""
        if rows is not None:
            np.save(self.folder / "x.npy", rows)
        out, err = io.StringIO(), io.StringIO()
        argv = [str(self.model), "--inputs", str(self.folder), "--out", str(self.folder / "out"), *options]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = ort_reference.main(argv)
        return status, out.getvalue(), err.getvalue()

    def answers(self):
        return np.load(self.folder / "out" / "y.npy")

    # Small whole numbers: their f32 sums are exact, so the expectation is too.
    rows = np.arange(4 * 5 * 3, dtype=np.float32).reshape(4, 5, 3) % 7

    def test_every_stream_sums_its_own_rows(self):
        status, out, err = self.run_script("--fix", "gain=3", "--state", "s=s_next@1", rows=self.rows)
        self.assertEqual((status, err), (0, ""))
        report = json.loads(out)
        self.assertEqual((report["streams"], report["turns"], report["outputs"]), (4, 5, {"y": [4, 5, 3]}))
        np.testing.assert_array_equal(self.answers(), 3 * self.rows.cumsum(axis=1))
        self.assertFalse((self.folder / "out" / "s_next.npy").exists())

    def test_the_lane_axis_of_a_state_is_its_free_one(self):
        status, _, err = self.run_script("--fix", "gain=1", "--state", "s=s_next", rows=self.rows)
        self.assertEqual((status, err), (0, ""))
        np.testing.assert_array_equal(self.answers(), self.rows.cumsum(axis=1))

    def test_rows_without_a_stream_axis_are_one_stream(self):
        status, out, _ = self.run_script("--fix", "gain=1", "--state", "s=s_next", rows=self.rows[2])
        self.assertEqual((status, json.loads(out)["streams"]), (0, 1))
        np.testing.assert_array_equal(self.answers(), self.rows[2:3].cumsum(axis=1))

    def test_what_does_not_fit_is_refused_by_name(self):
        fix, state = ("--fix", "gain=1"), ("--state", "s=s_next@1")
        for options, rows, named in [
            (state, self.rows, "gain.npy"),
            (fix, self.rows, "s.npy"),
            ((*fix, *state), self.rows.astype(np.float64), "float64"),
            ((*fix, *state), self.rows[..., :2], "the model takes 3"),
            ((*fix, *state), self.rows[0, 0], "2"),
            ((*fix, *state), self.rows[:, :0], "empty"),
            ((*fix, *state, *state), self.rows, "`s` was given before"),
            ((*fix, "--state", "s=s_next@0"), self.rows, "extent 2"),
            ((*fix, "--state", "s=s_next@3"), self.rows, "has 3 axes"),
            ((*fix, "--state", "s=z@1"), self.rows, "`z`"),
            ((*fix, "--state", "s"), self.rows, "NAME=VALUE"),
            ((*state, "--fix", "gain=1.5"), self.rows, "int64"),
            ((*fix, *state, "--lane", "y=1"), self.rows, "output `y`"),
        ]:
            with self.subTest(options=options, named=named):
                status, out, err = self.run_script(*options, rows=rows)
                self.assertEqual((status, out), (2, ""), err)
                self.assertIn(named, err)

    def test_a_file_that_is_no_model_fails_in_words(self):
        self.model.write_bytes(b"not a model")
        status, out, err = self.run_script(rows=self.rows)
        self.assertEqual((status, out), (1, ""))
        self.assertIn("running_sum.onnx", err)


if __name__ == "__main__":
    unittest.main()

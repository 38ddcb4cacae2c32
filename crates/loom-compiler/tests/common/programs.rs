//! Texts that are right: run by `programs`, broken on purpose by `robust`. Backends run them too, so they are files.

pub const AXPBY: &str = include_str!("../../../tests/kernels/axpby.loom");
pub const SOFTMAX: &str = include_str!("../../../tests/kernels/softmax.loom");
pub const MATMUL: &str = include_str!("../../../tests/kernels/matmul.loom");
pub const CELL: &str = include_str!("../../../tests/kernels/cell.loom");
pub const GEMV: &str = include_str!("../../../tests/kernels/gemv.loom");

/// All of them, with a kernel of each.
pub const ALL: [(&str, &str); 5] =
    [(AXPBY, "axpby"), (SOFTMAX, "softmax_rows"), (MATMUL, "mm"), (CELL, "cell"), (GEMV, "gemv")];

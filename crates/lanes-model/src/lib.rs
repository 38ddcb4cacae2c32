//! ONNX to a checked graph to plans; the kernel library.
#![deny(unsafe_code)]

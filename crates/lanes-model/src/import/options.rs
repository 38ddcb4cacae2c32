//! What a caller may say about a model that its file does not.

use crate::tensor::Tensor;
use std::collections::BTreeMap;

/// A value given from outside for an input.
#[derive(Clone, Debug, PartialEq)]
pub enum Given {
    /// One number, converted to the input's type and repeated over its shape.
    Number(f64),
    /// A tensor of the input's shape (without its lane axis, or with it at extent 1), converted to its type.
    Tensor(Tensor),
}

/// A declared state: `--state IN=OUT[@AXIS]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatePair {
    /// The model's input.
    pub input: String,
    /// The model's output that feeds it.
    pub output: String,
    /// The lane axis of both.
    pub axis: Option<usize>,
}

/// Everything that binds a model. The default binds nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImportOptions {
    /// Inputs bound to a constant, folded away (`--fix`).
    pub fix: BTreeMap<String, Given>,
    /// One seat's shape of an input, without its lane axis; what an `--input` SPEC implies.
    pub shapes: BTreeMap<String, Vec<usize>>,
    /// Declared states (`--state`), added to what is found.
    pub states: Vec<StatePair>,
    /// One lane's initial value of a state (`--init`); zeros where left out.
    pub init: BTreeMap<String, Given>,
    /// Inputs that one value serves for a whole turn (`--shared`).
    pub shared: Vec<String>,
}

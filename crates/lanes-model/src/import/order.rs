//! The nodes of a graph in an order in which every value is defined before it is used.

use crate::error::ModelError;
use crate::onnx::proto::{GraphProto, NodeProto};
use std::collections::{BTreeSet, HashMap, HashSet};

/// The nodes of `graph`, each after those it needs, otherwise as the file has them. Values from outside are taken to
/// be there.
///
/// # Errors
/// When two nodes define one value, or nodes need each other.
pub(super) fn topological(graph: &GraphProto) -> Result<Vec<&NodeProto>, ModelError> {
    let mut producers = HashMap::new();
    for (at, node) in graph.node.iter().enumerate() {
        for name in node.output.iter().filter(|name| !name.is_empty()) {
            if producers.insert(name.as_str(), at).is_some() {
                return Err(ModelError::malformed(format!("the value {name:?} is defined twice")));
            }
        }
    }
    let mut waits_for = vec![0usize; graph.node.len()];
    let mut needed_by = vec![Vec::new(); graph.node.len()];
    for (at, node) in graph.node.iter().enumerate() {
        let mut names = HashSet::new();
        uses(node, &mut names);
        let before: HashSet<usize> = names.iter().filter_map(|name| producers.get(name).copied()).collect();
        waits_for[at] = before.len();
        before.into_iter().for_each(|from| needed_by[from].push(at));
    }
    let mut ready: BTreeSet<usize> = (0..graph.node.len()).filter(|&at| waits_for[at] == 0).collect();
    let mut ordered = Vec::with_capacity(graph.node.len());
    while let Some(at) = ready.pop_first() {
        ordered.push(&graph.node[at]);
        for &next in &needed_by[at] {
            waits_for[next] -= 1;
            if waits_for[next] == 0 {
                ready.insert(next);
            }
        }
    }
    match waits_for.iter().position(|&waits| waits > 0) {
        None => Ok(ordered),
        Some(at) => {
            let node = &graph.node[at];
            let name = if node.name.is_empty() { node.output.first() } else { Some(&node.name) };
            Err(ModelError::malformed(format!(
                "node {} ({}) needs a value that is computed from its own result: the graph has a cycle",
                name.map_or("", String::as_str),
                node.op_type
            )))
        }
    }
}

/// The names that a node uses, those that its branches take from outside among them.
fn uses<'a>(node: &'a NodeProto, names: &mut HashSet<&'a str>) {
    names.extend(node.input.iter().filter(|name| !name.is_empty()).map(String::as_str));
    for body in node.attribute.iter().filter_map(|attribute| attribute.g.as_deref()) {
        let mut inner = HashSet::new();
        body.node.iter().for_each(|node| uses(node, &mut inner));
        inner.extend(body.output.iter().map(|output| output.name.as_str()));
        let own =
            body.node.iter().flat_map(|node| &node.output).chain(body.initializer.iter().map(|tensor| &tensor.name));
        own.for_each(|name| {
            inner.remove(name.as_str());
        });
        names.extend(inner);
    }
}

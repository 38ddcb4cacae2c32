//! A node's attributes, read with their types; one that nobody asks for is an error.

use super::builder::Fault;
use crate::onnx::proto::{AttributeProto, GraphProto, NodeProto, TensorProto};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// The attributes of one node.
pub(super) struct Attributes<'a> {
    by_name: BTreeMap<&'a str, &'a AttributeProto>,
    asked: RefCell<BTreeSet<&'static str>>,
}

type Read<T> = Result<T, Fault>;

impl<'a> Attributes<'a> {
    pub(super) fn of(node: &'a NodeProto) -> Read<Self> {
        let mut by_name = BTreeMap::new();
        for attribute in &node.attribute {
            if by_name.insert(attribute.name.as_str(), attribute).is_some() {
                return Err(Fault::Malformed(format!("attribute {:?} is there twice", attribute.name)));
            }
        }
        Ok(Self { by_name, asked: RefCell::default() })
    }

    /// The attribute, which must be of `kind` (0: a file so old that it does not say).
    fn get(&self, name: &'static str, kind: i32) -> Read<Option<&'a AttributeProto>> {
        self.asked.borrow_mut().insert(name);
        match self.by_name.get(name) {
            Some(found) if found.kind != kind && found.kind != 0 => Err(Fault::Malformed(format!(
                "attribute {name} is of attribute type {}, and {kind} is expected",
                found.kind
            ))),
            found => Ok(found.copied()),
        }
    }

    pub(super) fn float(&self, name: &'static str) -> Read<Option<f32>> {
        Ok(self.get(name, 1)?.map(|attribute| attribute.f))
    }

    pub(super) fn int(&self, name: &'static str) -> Read<Option<i64>> {
        Ok(self.get(name, 2)?.map(|attribute| attribute.i))
    }

    /// An integer that stands for a truth value.
    pub(super) fn flag(&self, name: &'static str, default: bool) -> Read<bool> {
        Ok(self.int(name)?.map_or(default, |value| value != 0))
    }

    pub(super) fn text(&self, name: &'static str) -> Read<Option<&'a str>> {
        let utf8 = |bytes: &'a [u8]| {
            std::str::from_utf8(bytes).map_err(|_| Fault::Malformed(format!("attribute {name} is no text")))
        };
        self.get(name, 3)?.map(|attribute| utf8(&attribute.s)).transpose()
    }

    pub(super) fn tensor(&self, name: &'static str) -> Read<Option<&'a TensorProto>> {
        Ok(self.get(name, 4)?.and_then(|attribute| attribute.t.as_deref()))
    }

    pub(super) fn graph(&self, name: &'static str) -> Read<&'a GraphProto> {
        let found = self.get(name, 5)?.and_then(|attribute| attribute.g.as_deref());
        found.ok_or_else(|| Fault::Malformed(format!("attribute {name}, a graph, is missing")))
    }

    pub(super) fn floats(&self, name: &'static str) -> Read<Option<&'a [f32]>> {
        Ok(self.get(name, 6)?.map(|attribute| &attribute.floats[..]))
    }

    pub(super) fn ints(&self, name: &'static str) -> Read<Option<&'a [i64]>> {
        Ok(self.get(name, 7)?.map(|attribute| &attribute.ints[..]))
    }

    pub(super) fn texts(&self, name: &'static str) -> Read<Option<Vec<String>>> {
        let lossy = |attribute: &AttributeProto| {
            attribute.strings.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect()
        };
        Ok(self.get(name, 8)?.map(lossy))
    }

    /// An attribute that changes nothing at inference.
    pub(super) fn ignore(&self, names: &[&'static str]) {
        self.asked.borrow_mut().extend(names);
    }

    /// Refuses attributes that were not asked for.
    pub(super) fn finish(&self) -> Read<()> {
        let asked = self.asked.borrow();
        match self.by_name.keys().find(|name| !asked.contains(*name)) {
            None => Ok(()),
            Some(unknown) => {
                let known: Vec<_> = asked.iter().copied().collect();
                let known = if known.is_empty() { "none".into() } else { known.join(", ") };
                Err(Fault::Unsupported(format!("attribute {unknown:?}; supported are {known}")))
            }
        }
    }
}

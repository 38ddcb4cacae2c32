//! Where each value of a body is used last, and how often it is used.
//!
//! The last use of a value is a position in the block that defines it: a use in a nested block counts for the op that owns
//! the nest, so that a value used in a loop lives as long as the loop.

use crate::ir::{BlockId, Body, ValueId};

pub(super) struct Liveness {
    /// Reads of each value, those by way of a type included.
    pub uses: Vec<u32>,
    /// `dying[block][op]`: values defined in `block` that nothing reads after `op`.
    dying: Vec<Vec<Vec<ValueId>>>,
}

impl Liveness {
    /// Values of `block` that nothing needs after its op `op`.
    pub fn dying(&self, block: BlockId, op: usize) -> &[ValueId] {
        self.dying[block.index()].get(op).map_or(&[], |values| values)
    }

    pub fn new(body: &Body) -> Self {
        let mut owner: Vec<Option<(BlockId, usize)>> = vec![None; body.blocks.len()];
        let mut home: Vec<Option<BlockId>> = vec![None; body.values.len()];
        let mut last: Vec<usize> = vec![0; body.values.len()];
        for (block, contents) in blocks(body) {
            for &argument in &contents.arguments {
                home[argument.index()] = Some(block);
            }
            for (at, op) in contents.ops.iter().enumerate() {
                for &result in &op.results {
                    home[result.index()] = Some(block);
                    last[result.index()] = at;
                }
                for &nested in &op.blocks {
                    owner[nested.index()] = Some((block, at));
                }
            }
        }
        let mut uses = vec![0; body.values.len()];
        for (block, contents) in blocks(body) {
            for (at, op) in contents.ops.iter().enumerate() {
                let read = |value: ValueId| {
                    uses[value.index()] += 1;
                    let (mut block, mut at) = (block, at);
                    while home[value.index()] != Some(block) {
                        match owner[block.index()] {
                            Some(outer) => (block, at) = outer,
                            None => return, // of a block that nothing owns
                        }
                    }
                    last[value.index()] = last[value.index()].max(at);
                };
                op.each_read(body, read);
            }
        }
        let mut dying: Vec<Vec<Vec<ValueId>>> = body.blocks.iter().map(|b| vec![Vec::new(); b.ops.len()]).collect();
        for (value, block) in home.iter().enumerate() {
            if let Some(at) = block.and_then(|block| dying[block.index()].get_mut(last[value])) {
                at.push(ValueId(value as u32));
            }
        }
        Self { uses, dying }
    }
}

fn blocks(body: &Body) -> impl Iterator<Item = (BlockId, &crate::ir::Block)> {
    body.blocks.iter().enumerate().map(|(at, block)| (BlockId(at as u32), block))
}

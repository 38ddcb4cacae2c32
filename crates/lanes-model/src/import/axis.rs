//! Where the lanes lie in a value, and where an op moves them.
//!
//! - The graph is the model at lane extent 1, so computing it per lane is always exact. What is followed here is the
//!   lane axis the model *would* have at a larger extent, to find the ops that name it: their author asked for lanes
//!   to be mixed, and the model is refused.
//! - An `Err` is the reason, as a clause for "node … (…) mixes lanes: …".
//! - Not here: which axis of an input holds the lanes (`bind`), what an op computes.

use crate::graph::SliceAxis;

/// Where the lanes lie in a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// The value is the same for every lane: it comes from constants and shared inputs alone.
    Free,
    /// Each lane has its own, and no axis holds the lanes: it was reduced over per lane, or a batch of 1 was dropped.
    Gone,
    /// The lanes are a factor of `axis`, whose extent at lane extent 1 is `outer · inner`: `outer` blocks, each of
    /// all lanes, each lane of `inner` elements. Alone on the axis both are 1.
    In {
        /// Which axis.
        axis: usize,
        /// Elements of the axis outside the lanes.
        outer: usize,
        /// Elements of the axis inside a lane.
        inner: usize,
    },
}

impl Lane {
    /// The lanes alone on `axis`.
    pub(crate) const fn on(axis: usize) -> Self {
        Self::In { axis, outer: 1, inner: 1 }
    }

    /// The axis that holds the lanes.
    pub(crate) const fn axis(self) -> Option<usize> {
        match self {
            Self::In { axis, .. } => Some(axis),
            Self::Free | Self::Gone => None,
        }
    }

    /// The same place on another axis.
    fn moved(self, to: impl FnOnce(usize) -> usize) -> Self {
        match self {
            Self::In { axis, outer, inner } => Self::In { axis: to(axis), outer, inner },
            other => other,
        }
    }
}

type Place = Result<Lane, String>;

/// Two operands' lanes in one result, both already in the result's axes.
fn meet(a: Lane, b: Lane) -> Place {
    match (a, b) {
        (Lane::Free, other) | (other, Lane::Free) => Ok(other),
        (Lane::Gone, other) | (other, Lane::Gone) => Ok(other),
        (a, b) if a == b => Ok(a),
        (a, b) => {
            let at = |lane: Lane| lane.axis().unwrap_or_default();
            Err(format!(
                "lanes lie on axis {} of one operand and on axis {} of another, so every lane would meet every other",
                at(a),
                at(b)
            ))
        }
    }
}

/// Broadcast operands: each one's lanes and shape, and the result's shape.
pub(crate) fn broadcast(operands: &[(Lane, &[usize])], result: &[usize]) -> Place {
    let aligned = |(lane, shape): &(Lane, &[usize])| lane.moved(|axis| axis + result.len() - shape.len());
    let lane = operands.iter().map(aligned).try_fold(Lane::Free, meet)?;
    let Lane::In { axis, outer, inner } = lane else {
        return Ok(lane);
    };
    if result[axis] == outer * inner {
        return Ok(lane);
    }
    // Something was broadcast along the lane axis.
    let extent = |shape: &[usize]| (axis + shape.len()).checked_sub(result.len()).map_or(1, |at| shape[at]);
    match operands.iter().find(|(lane, shape)| *lane == Lane::Free && extent(shape) > 1) {
        Some((_, shape)) => Err(format!(
            "an operand that is the same for every lane has {} entries along axis {axis}, which holds the lanes",
            extent(shape)
        )),
        None => Ok(Lane::Gone),
    }
}

/// The same elements from shape `from` to shape `to`. `lane_dims` tells which extents of `to` were taken from the
/// lane axis, `rest` the one given as −1.
pub(crate) fn reshape(lane: Lane, from: &[usize], to: &[usize], lane_dims: &[bool], rest: Option<usize>) -> Place {
    let Lane::In { axis, outer, .. } = lane else {
        return Ok(lane);
    };
    // What lies outside the lanes is the same before and after.
    let outside = from[..axis].iter().product::<usize>() * outer;
    let before = |at: usize| to[..at].iter().product::<usize>();
    // The lanes as a factor of axis `at`, if the order of the elements allows it.
    let within = |at: usize| {
        let (before, extent) = (before(at), to[at]);
        let divides = before != 0 && outside % before == 0 && extent != 0 && extent % (outside / before).max(1) == 0;
        let outer = outside.checked_div(before).unwrap_or(0);
        (divides && outer >= 1 && outer <= extent).then(|| Lane::In { axis: at, outer, inner: extent / outer })
    };
    if to.contains(&0) || outside == 0 {
        return Ok(Lane::Gone);
    }
    if let Some(at) = lane_dims.iter().position(|&taken| taken) {
        return within(at).ok_or_else(|| {
            format!(
                "it makes axis {at} as long as the lane axis {axis} of its operand, whose elements it puts elsewhere"
            )
        });
    }
    let alone = |at: usize| before(at) == outside && to[at] == 1;
    let candidates = rest.into_iter().chain([axis]).chain(0..to.len());
    if let Some(at) = candidates.filter(|&at| at < to.len()).find(|&at| alone(at)) {
        return Ok(Lane::on(at));
    }
    match rest {
        None => Ok(Lane::Gone),
        // More lanes would make the axis given as -1 longer, and nothing else.
        Some(at) => within(at).ok_or_else(|| {
            format!("lanes of axis {axis} of its operand would be dealt out over the entries of axis {at}, which it gives as -1")
        }),
    }
}

/// Axes moved: axis `i` of the result is `perm[i]` of the operand.
pub(crate) fn transpose(lane: Lane, perm: &[usize]) -> Lane {
    lane.moved(|axis| perm.iter().position(|&from| from == axis).unwrap_or(axis))
}

/// Axes of extent 1 dropped.
pub(crate) fn squeeze(lane: Lane, axes: &[usize]) -> Lane {
    match lane {
        Lane::In { axis, .. } if axes.contains(&axis) => Lane::Gone,
        lane => lane.moved(|axis| axis - axes.iter().filter(|&&dropped| dropped < axis).count()),
    }
}

/// Axes of extent 1 put in, at their places in the result; `axes` is ascending.
pub(crate) fn unsqueeze(lane: Lane, axes: &[usize]) -> Lane {
    lane.moved(|axis| axes.iter().fold(axis, |at, &new| if new <= at { at + 1 } else { at }))
}

/// A reduction over `axes`, the lane axis not among them, or taken in by default.
pub(crate) fn reduce(lane: Lane, axes: &[usize], keepdims: bool) -> Lane {
    match lane {
        Lane::In { axis, .. } if axes.contains(&axis) => {
            if keepdims {
                Lane::on(axis)
            } else {
                Lane::Gone
            }
        }
        lane if keepdims => lane,
        lane => squeeze(lane, axes),
    }
}

/// Operands one after the other along `along`.
pub(crate) fn concat(lanes: &[Lane], along: usize) -> Place {
    let lane = lanes.iter().copied().try_fold(Lane::Free, meet)?;
    match lane.axis() {
        Some(axis) if axis == along && lanes.len() > 1 => {
            Err(format!("it joins along axis {along}, which holds the lanes"))
        }
        _ => Ok(lane),
    }
}

/// A part of the operand. `whole` tells whether an axis was asked for whole at any extent.
pub(crate) fn slice(lane: Lane, cuts: &[SliceAxis], whole: impl Fn(usize) -> bool, shape: &[usize]) -> Place {
    let Lane::In { axis, .. } = lane else {
        return Ok(lane);
    };
    match cuts.iter().find(|cut| cut.axis == axis) {
        Some(cut) if !whole(axis) => Err(format!(
            "it takes {} of the entries of axis {axis}, which holds the lanes ({} at lane extent 1)",
            if cut.step < 0 { "a reversed part" } else { "a part" },
            shape[axis]
        )),
        _ => Ok(lane),
    }
}

/// Entries along `along`, chosen by indices of shape `indices`.
pub(crate) fn gather(data: Lane, indices: Lane, along: usize, index_rank: usize) -> Place {
    if data.axis() == Some(along) {
        return Err(format!("it picks entries of axis {along}, which holds the lanes"));
    }
    let data = data.moved(|axis| if axis < along { axis } else { axis + index_rank - 1 });
    meet(data, indices.moved(|axis| axis + along))
}

/// A matrix product of shapes `a` and `b`, both of rank 2 or more after promotion, result of rank `rank`.
pub(crate) fn matmul(a: (Lane, &[usize]), b: (Lane, &[usize]), rank: usize) -> Place {
    let contracted = |lane: Lane, axis: usize| lane.axis() == Some(axis);
    if contracted(a.0, a.1.len() - 1) || contracted(b.0, b.1.len() - 2) {
        return Err("its sum runs over the axis that holds the lanes".into());
    }
    let aligned = |(lane, shape): (Lane, &[usize])| lane.moved(|axis| axis + rank - shape.len());
    meet(aligned(a), aligned(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(axis: usize, outer: usize, inner: usize) -> Lane {
        Lane::In { axis, outer, inner }
    }

    /// Each case is a reshape at lane extent 1 whose lanes, at extent B, provably go where it says.
    #[test]
    fn a_reshape_keeps_what_lies_outside_the_lanes() {
        let none = |rank: usize| vec![false; rank];
        // [B, 5, 64] -> [-1, 64]: batch and steps merge, lanes outermost; and back by Shape.
        assert_eq!(reshape(Lane::on(0), &[1, 5, 64], &[5, 64], &none(2), Some(0)), Ok(merged(0, 1, 5)));
        assert_eq!(reshape(merged(0, 1, 5), &[5, 64], &[1, 5, 64], &[true, false, false], None), Ok(Lane::on(0)));
        // [T, B, C] -> [-1, C]: lanes innermost; then to [T, B, C].
        assert_eq!(reshape(Lane::on(1), &[5, 1, 64], &[5, 64], &none(2), Some(0)), Ok(merged(0, 5, 1)));
        assert_eq!(reshape(merged(0, 5, 1), &[5, 64], &[5, 1, 64], &none(3), None), Ok(Lane::on(1)));
        // [B, 1, 64] -> [1, -1, 64]: the -1 takes the lanes.
        assert_eq!(reshape(Lane::on(0), &[1, 1, 64], &[1, 1, 64], &none(3), Some(1)), Ok(Lane::on(1)));
        // [1, 128] -> [1, 128] by constants: a baked batch.
        assert_eq!(reshape(Lane::on(0), &[1, 1, 128], &[1, 128], &none(2), None), Ok(Lane::on(0)));
        // [T, B, C] -> [B, T, C] by a reshape deals one lane's elements out to others.
        assert!(reshape(Lane::on(1), &[5, 1, 64], &[1, 5, 64], &[true, false, false], None).is_err());
    }

    #[test]
    fn broadcasting_must_not_give_lanes_places() {
        assert_eq!(broadcast(&[(Lane::on(0), &[1, 4]), (Lane::Free, &[4])], &[1, 4]), Ok(Lane::on(0)));
        assert!(broadcast(&[(Lane::on(0), &[1, 4]), (Lane::Free, &[3, 4])], &[3, 4]).is_err());
        assert!(broadcast(&[(Lane::on(0), &[1, 1, 4]), (Lane::on(0), &[1, 4])], &[1, 1, 4]).is_err());
    }

    #[test]
    fn unsqueeze_and_squeeze_undo_each_other() {
        let lane = unsqueeze(Lane::on(1), &[0, 2]);
        assert_eq!(lane, Lane::on(3));
        assert_eq!(squeeze(lane, &[0, 2]), Lane::on(1));
        assert_eq!(squeeze(lane, &[3]), Lane::Gone);
    }
}

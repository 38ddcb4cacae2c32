//! Which axis of each input holds the lanes, and what every other extent is.
//!
//! - The lane axis is where the file has the batch's name; else an axis of unknown extent, or of extent 1 (a batch
//!   baked into the file). Where several are possible, import tries them in order, and the first that proves
//!   independent is meant.
//! - Equal names have equal extents. The batch's is 1.
//! - Not here: that an input is a state (`states`); where the lanes go from there (`axis`).

use super::declared::{Declared, Dim};
use super::options::ImportOptions;
use super::states::Pair;
use crate::error::ModelError;
use std::collections::BTreeMap;

/// What an input is to the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A call brings it.
    Stream,
    /// The lane keeps it.
    State,
    /// One value serves a whole turn.
    Shared,
    /// Bound to a constant.
    Fixed,
}

/// An input, bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) role: Role,
    pub(super) lane_axis: Option<usize>,
    /// At lane extent 1.
    pub(super) shape: Vec<usize>,
}

/// All inputs, bound, in one of the ways that the file allows.
#[derive(Clone, Debug)]
pub(super) struct Binding {
    pub(super) inputs: Vec<Bound>,
    /// Whether the file gives the lane axis the extent 1 itself, everywhere.
    pub(super) baked: bool,
    /// Extents that were assumed because nobody gave them: "input.1", or the extent's name.
    pub(super) assumed: BTreeMap<String, usize>,
}

/// At most so many ways are tried.
const WAYS_MAX: usize = 32;

/// Whether an extent's name says that it counts streams.
fn names_the_batch(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    lower.contains("batch")
        || matches!(lower.as_str(), "b" | "n" | "bs" | "bsz" | "nb" | "lanes" | "streams" | "num_streams")
}

/// The name that the file gives the number of lanes, if it has one.
fn lane_name(inputs: &[&Declared], options: &ImportOptions) -> Option<String> {
    let names = || {
        inputs.iter().flat_map(|input| input.dims.iter().flatten().enumerate().map(move |(at, dim)| (*input, at, dim)))
    };
    let named = |dim: &Dim| {
        if let Dim::Named(name) = dim { Some(name.clone()) } else { None }
    };
    if let Some(name) = names().find_map(|(_, _, dim)| named(dim).filter(|name| names_the_batch(name))) {
        return Some(name);
    }
    // Otherwise what several inputs share, or what leads one, unless its given shape needs it.
    let spread = |name: &str| {
        inputs.iter().filter(|input| input.dims.iter().flatten().any(|dim| named(dim).as_deref() == Some(name))).count()
    };
    let leads = |input: &Declared, at: usize| {
        let full =
            options.shapes.get(&input.name).is_some_and(|shape| Some(shape.len()) == input.dims.as_ref().map(Vec::len));
        at == 0 && !full
    };
    let most = names().filter_map(|(_, _, dim)| named(dim)).map(|name| spread(&name)).max().unwrap_or(0);
    names().find_map(|(input, at, dim)| {
        let name = named(dim)?;
        (leads(input, at) && spread(&name) == most || (spread(&name) == most && most > 1)).then_some(name)
    })
}

/// Whether a seat's shape fits the declared one without axis `lane` (or with it, at extent 1).
fn fits(dims: &[Dim], lane: Option<usize>, shape: &[usize]) -> bool {
    let full = shape.len() == dims.len();
    if !full && shape.len() + usize::from(lane.is_some()) != dims.len() {
        return false;
    }
    dims.iter().enumerate().all(|(axis, dim)| {
        let given = match lane {
            Some(lane) if axis == lane => return !full || shape[axis] == 1,
            Some(lane) if !full && axis > lane => shape[axis - 1],
            _ => shape[axis],
        };
        !matches!(dim, Dim::Known(known) if *known != given)
    })
}

/// The lane axes that an input may have, the likeliest first; empty: it has none.
fn candidates(
    input: &Declared,
    name: Option<&str>,
    given: Option<&Vec<usize>>,
    declared: Option<usize>,
    state: bool,
) -> Vec<usize> {
    let dims = input.dims.as_deref().unwrap_or_default();
    if let Some(axis) = declared {
        return vec![axis];
    }
    if let Some(axis) =
        dims.iter().position(|dim| matches!((dim, name), (Dim::Named(found), Some(name)) if found == name))
    {
        return vec![axis];
    }
    let where_ = |wanted: fn(&Dim) -> bool| (0..dims.len()).filter(move |&axis| wanted(&dims[axis]));
    let unknown = where_(|dim| *dim == Dim::Unknown);
    let ones = where_(|dim| *dim == Dim::Known(1));
    let named = where_(|dim| matches!(dim, Dim::Named(_)));
    let found: Vec<usize> = match name {
        // A file that names its batch leaves it out of a state only where it bakes it in.
        Some(name) if names_the_batch(name) && state => unknown.chain(ones).chain(named).collect(),
        Some(name) if names_the_batch(name) && given.is_none() => unknown.collect(),
        // Names made up per input say nothing of each other.
        Some(_) if state => unknown.chain(named).chain(ones).collect(),
        Some(_) if given.is_none() => unknown.chain(named.filter(|&axis| axis == 0)).collect(),
        _ => unknown.chain(ones).collect(),
    };
    match given {
        None => found,
        Some(shape) => found.into_iter().filter(|&axis| fits(dims, Some(axis), shape)).collect(),
    }
}

/// The ways to bind `inputs`. `assume` is used for extents that nobody gave; without it they are an error.
pub(super) fn bind(
    inputs: &[Declared],
    pairs: &[Pair],
    options: &ImportOptions,
    assume: Option<usize>,
) -> Result<Vec<Binding>, ModelError> {
    check_names(inputs, options)?;
    let role = |input: &Declared| {
        if options.fix.contains_key(&input.name) {
            Role::Fixed
        } else if pairs.iter().any(|pair| pair.input == input.name) {
            Role::State
        } else if options.shared.contains(&input.name) || input.dims.as_ref().is_some_and(Vec::is_empty) {
            Role::Shared
        } else {
            Role::Stream
        }
    };
    let laned: Vec<&Declared> =
        inputs.iter().filter(|input| matches!(role(input), Role::Stream | Role::State)).collect();
    let name = lane_name(&laned, options);
    // For each input its role and possible lane axes.
    let mut choices: Vec<(Role, Vec<Option<usize>>)> = Vec::new();
    for input in inputs {
        let mut role = role(input);
        let given = options.shapes.get(&input.name);
        let declared = pairs.iter().find(|pair| pair.input == input.name).and_then(|pair| pair.axis);
        let rank = input.dims.as_ref().map_or(0, Vec::len);
        if let Some(axis) = declared.filter(|&axis| axis >= rank) {
            return Err(ModelError::option(format!(
                "--state {}=…@{axis}: the input has shape {}, so its lane axis is below {rank}",
                input.name,
                input.shape()
            )));
        }
        let mut axes: Vec<Option<usize>> = match role {
            Role::Fixed | Role::Shared => Vec::new(),
            Role::State | Role::Stream => {
                candidates(input, name.as_deref(), given, declared, role == Role::State).into_iter().map(Some).collect()
            }
        };
        if axes.is_empty() {
            // In a file that names its batch, an input without it is the same for all; a state never is.
            if role == Role::Stream && name.is_some() {
                role = Role::Shared;
            }
            axes.push(None);
        }
        choices.push((role, axes));
    }
    if !choices.iter().any(|(role, _)| *role == Role::Stream) {
        // Nothing would stream: then whatever is neither fixed nor declared shared does.
        for (input, (role, _)) in inputs.iter().zip(&mut choices) {
            if *role == Role::Shared && !options.shared.contains(&input.name) {
                *role = Role::Stream;
            }
        }
    }
    let mut ways: Vec<Vec<Option<usize>>> = vec![Vec::new()];
    for (_, axes) in &choices {
        ways = axes
            .iter()
            .flat_map(|axis| ways.iter().map(|way| [&way[..], &[*axis]].concat()).collect::<Vec<_>>())
            .collect();
        ways.truncate(WAYS_MAX);
    }
    ways.into_iter().map(|way| bind_way(inputs, &choices, &way, options, assume)).collect()
}

fn check_names(inputs: &[Declared], options: &ImportOptions) -> Result<(), ModelError> {
    let mut asked: Vec<(&str, &String)> = Vec::new();
    asked.extend(options.fix.keys().map(|name| ("--fix", name)));
    asked.extend(options.shapes.keys().map(|name| ("--input", name)));
    asked.extend(options.init.keys().map(|name| ("--init", name)));
    asked.extend(options.shared.iter().map(|name| ("--shared", name)));
    match asked.iter().find(|(_, name)| !inputs.iter().any(|input| input.name == **name)) {
        None => Ok(()),
        Some((option, name)) => {
            let known: Vec<String> = inputs.iter().map(|input| format!("{} {}", input.name, input.shape())).collect();
            Err(ModelError::option(format!(
                "{option} {name}: the model has no such input; it has {}",
                known.join(", ")
            )))
        }
    }
}

fn bind_way(
    inputs: &[Declared],
    choices: &[(Role, Vec<Option<usize>>)],
    way: &[Option<usize>],
    options: &ImportOptions,
    assume: Option<usize>,
) -> Result<Binding, ModelError> {
    // First what is given by name, then everything.
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    let mut extents: Vec<Vec<Option<usize>>> = Vec::new();
    let mut baked = true;
    for ((input, (role, _)), &lane) in inputs.iter().zip(choices).zip(way) {
        let dims = input.dims.as_deref().unwrap_or_default();
        let given = given_shape(input, *role, options);
        if let Some(shape) = &given
            && !fits(dims, lane, shape)
        {
            let lane = lane.map_or("which has no lane axis".into(), |axis| format!("whose lane axis is {axis}"));
            let (what, accepted) = match role {
                Role::State if options.init.contains_key(&input.name) => {
                    (format!("--init {}: the value's", input.name), "; one lane's value, or a number, is accepted")
                }
                Role::Fixed => {
                    (format!("--fix {}: the value's", input.name), "; a value like that, or a number, is accepted")
                }
                _ => (format!("input {}: a seat's", input.name), ""),
            };
            return Err(ModelError::option(format!(
                "{what} shape is {shape:?}, and the model declares {}, {lane}{accepted}",
                input.shape()
            )));
        }
        let mut own = Vec::with_capacity(dims.len());
        for (axis, dim) in dims.iter().enumerate() {
            let seat = given.as_ref().and_then(|shape| match lane {
                Some(lane) if shape.len() < dims.len() => {
                    (axis != lane).then(|| shape[axis - usize::from(axis > lane)])
                }
                _ => Some(shape[axis]),
            });
            let extent = match dim {
                _ if lane == Some(axis) => Some(1),
                Dim::Known(extent) => Some(*extent),
                _ => seat,
            };
            if lane == Some(axis) {
                baked &= *dim == Dim::Known(1);
            }
            if let (Dim::Named(name), Some(extent)) = (dim, extent)
                && let Some(other) = names.insert(name, extent).filter(|&other| other != extent)
            {
                return Err(ModelError::option(format!(
                    "input {}: axis {axis} ({name}) is {extent} here and {other} elsewhere",
                    input.name
                )));
            }
            own.push(extent);
        }
        extents.push(own);
    }
    let mut assumed = BTreeMap::new();
    let mut bound = Vec::new();
    for (at, (input, own)) in inputs.iter().zip(extents).enumerate() {
        let (role, lane_axis) = (choices[at].0, way[at]);
        let dims = input.dims.as_deref().unwrap_or_default();
        let mut shape = Vec::with_capacity(own.len());
        for (axis, extent) in own.into_iter().enumerate() {
            let by_name = if let Dim::Named(name) = &dims[axis] { names.get(name.as_str()).copied() } else { None };
            let extent = extent.or(by_name).or_else(|| {
                // A fixed number has one element wherever the file does not say more.
                if role == Role::Fixed {
                    return Some(1);
                }
                let extent = assume?;
                let label =
                    if let Dim::Named(name) = &dims[axis] { name.clone() } else { format!("{}.{axis}", input.name) };
                assumed.insert(label, extent);
                Some(extent)
            });
            shape.push(extent.ok_or_else(|| missing(input, axis, &dims[axis], role))?);
        }
        bound.push(Bound { role, lane_axis, shape });
    }
    Ok(Binding { inputs: bound, baked, assumed })
}

/// The shape that an option implies for an input.
fn given_shape(input: &Declared, role: Role, options: &ImportOptions) -> Option<Vec<usize>> {
    let tensor = |given: Option<&super::options::Given>| match given {
        Some(super::options::Given::Tensor(tensor)) => Some(tensor.shape().to_vec()),
        _ => None,
    };
    match role {
        Role::Fixed => tensor(options.fix.get(&input.name)),
        Role::State => tensor(options.init.get(&input.name)).or_else(|| options.shapes.get(&input.name).cloned()),
        Role::Stream | Role::Shared => options.shapes.get(&input.name).cloned(),
    }
}

fn missing(input: &Declared, axis: usize, dim: &Dim, role: Role) -> ModelError {
    let name = &input.name;
    let (shape, called) =
        (input.shape(), if let Dim::Named(name) = dim { format!(" ({name})") } else { String::new() });
    let option = match role {
        Role::State => format!("--init {name}=FILE.npy of one lane's shape gives it"),
        _ => format!(
            "--input {name}=SPEC gives it (a wav with frame=N, or an npy), or --fix {name}=VALUE if it is a setting"
        ),
    };
    ModelError::option(format!("input {name} {shape}: the extent of axis {axis}{called} is not known; {option}"))
}

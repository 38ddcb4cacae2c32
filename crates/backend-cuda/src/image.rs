//! Kernels, compiled once: text to PTX to what the driver makes of it.
//!
//! - Compiled modules are known by the hash of their text, as long as an executable holds them.
//! - What the driver made of a text is kept on disk too (`binaries`), unless that is turned off.

use crate::binaries::Binaries;
use crate::sys::{Context, Function, Module};
use lanes_core::device::DeviceError;
use loom_compiler::ptx::{self, Image, STATIC_SHARED_BYTES, Sm};
use loom_compiler::{CpuImage, Origin};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// What the driver and the GPU in hand take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Takes {
    pub target: Sm,
    pub version: ptx::Version,
    /// The most workgroup memory of a launch.
    pub shared_bytes_max: u64,
    /// Whether a kernel may begin before those that it comes after have ended.
    pub overlaps: bool,
}

impl Takes {
    /// Whether four subgroups may multiply at once.
    pub fn multiplies_in_groups(&self) -> bool {
        ptx::multiplies_in_groups(self.target, self.version)
    }
}

/// The newest PTX that a driver made for CUDA `driver` takes (release notes of the PTX ISA).
pub(crate) fn ptx_version(driver: u32) -> ptx::Version {
    match driver / 10 {
        ..1200 => (7, 4),
        1200..=1205 => (8, driver / 10 - 1200),
        1206 => (8, 5),
        1207 => (8, 6),
        1208 => (8, 7),
        1209..1300 => (8, 8),
        1300 => (9, 0),
        _ => (9, 1),
    }
}

/// The modules of one device, by the hash of their text.
pub(crate) struct Modules {
    known: Mutex<HashMap<[u8; 32], Weak<Module>>>,
    /// Where binaries are kept.
    binaries: Option<Binaries>,
}

impl Modules {
    /// None yet.
    pub fn new(binaries: Option<Binaries>) -> Self {
        Self { known: Mutex::default(), binaries }
    }

    /// The module of `text`.
    pub fn load(&self, context: &Arc<Context>, kernel: &str, text: &str) -> Result<Arc<Module>, DeviceError> {
        let key: [u8; 32] = Sha256::digest(text).into();
        let known = |modules: &HashMap<_, Weak<Module>>| modules.get(&key).and_then(Weak::upgrade);
        if let Some(module) = known(&self.known.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(module);
        }
        // Not under the lock: it takes milliseconds. Two that compile the same at once both keep what they made.
        let module = match &self.binaries {
            Some(binaries) => binaries.module(context, kernel, text)?,
            None => context.module(kernel, text)?,
        };
        let module = Arc::new(module);
        let mut modules = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        modules.retain(|_, module| module.strong_count() > 0);
        modules.insert(key, Arc::downgrade(&module));
        Ok(module)
    }
}

/// A kernel ready to launch.
pub(crate) struct Kernel {
    pub image: Arc<Image>,
    pub function: Function,
    /// Workgroup memory that a launch asks for.
    pub shared_bytes: u32,
}

/// What `image` was compiled from, as PTX.
pub(crate) fn of_image(image: &CpuImage, takes: &Takes) -> Result<Image, DeviceError> {
    let Some(origin) = &image.origin else {
        let what = format!("kernel {}: its image came without the text that it was compiled from", image.name);
        return Err(DeviceError::Unsupported { what });
    };
    of_text(origin, &image.name, true, 0, takes)
}

/// A kernel of a text as PTX, every access `checked` or not. Nobody writes the launch arguments that `constants` has bits for.
pub(crate) fn of_text(
    origin: &Origin,
    name: &str,
    checked: bool,
    constants: u64,
    takes: &Takes,
) -> Result<Image, DeviceError> {
    let build = |log: String| DeviceError::Build { kernel: name.to_owned(), log };
    let module = origin.module().map_err(|log| build(log.to_string()))?;
    let start = if takes.overlaps { ptx::Start::Early { constants } } else { ptx::Start::Behind };
    let options = ptx::Options { target: takes.target, version: takes.version, checked, start };
    let kernel = module.specialise(&origin.kernel, &origin.config).map_err(|log| build(log.to_string()))?;
    let image = module.ptx_of(&kernel, &options).map_err(|unsupported| {
        let message = format!("{} is not supported on {}", unsupported.what, unsupported.target);
        DeviceError::Unsupported { what: format!("kernel {name}: {}", module.refusal(unsupported.span, &message)) }
    })?;
    #[cfg(test)]
    crate::emulated::note(&kernel, &image);
    let asked = image.static_shared_bytes + image.dynamic_shared_bytes;
    if asked > takes.shared_bytes_max.max(STATIC_SHARED_BYTES) {
        let most = takes.shared_bytes_max;
        let what = format!("kernel {name} needs {asked} bytes of workgroup memory, and the GPU has {most}");
        return Err(DeviceError::Unsupported { what });
    }
    Ok(image)
}

/// An origin of one text without config values.
pub(crate) fn text(name: &str, text: String, kernel: &str) -> Origin {
    Origin { texts: vec![(name.to_owned(), text)], kernel: kernel.to_owned(), config: BTreeMap::new() }
}

impl Kernel {
    /// Has the driver compile `image`.
    pub fn load(context: &Arc<Context>, modules: &Modules, image: Image) -> Result<Self, DeviceError> {
        let module = modules.load(context, &image.name, &image.text)?;
        // What `of_text` compared with a GPU's limit, which is below 2^31.
        let shared_bytes = image.dynamic_shared_bytes as u32;
        let function = module.function(&image.entry, shared_bytes, image.waits)?;
        Ok(Self { image: Arc::new(image), function, shared_bytes })
    }
}

/// That an assembler, if there is one at hand (`PTXAS`, which `cargo xtask ptx` sets), takes a text for a target, and spills no register.
#[cfg(test)]
pub(crate) fn assemble(text: &str, target: &str) {
    let Some(ptxas) = std::env::var_os("PTXAS") else { return };
    let folder = tempfile::tempdir().expect("there is room");
    let (from, to) = (folder.path().join("text.ptx"), folder.path().join("text.cubin"));
    std::fs::write(&from, text).expect("there is room");
    let mut command = std::process::Command::new(&ptxas);
    let done = command.args(["-arch", target, "-v", "-o"]).args([&to, &from]).output().expect("it starts");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{target}: {said}\n{text}");
    for line in said.lines().filter(|line| line.contains("spill")) {
        assert!(line.contains("0 bytes spill stores, 0 bytes spill loads"), "{target}: {line}\n{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CUDA 12.6 brought no new PTX, 12.7 was never released to the public.
    #[test]
    fn versions_are_those_of_the_release_notes() {
        for (driver, version) in
            [(12_000, (8, 0)), (12_040, (8, 4)), (12_060, (8, 5)), (12_080, (8, 7)), (12_090, (8, 8)), (13_000, (9, 0))]
        {
            assert_eq!(ptx_version(driver), version, "{driver}");
        }
    }

    #[test]
    fn an_image_is_compiled_for_a_gpu_out_of_its_text() {
        let text = "
            kernel.def @twice(%n: index) {
              %one = index.constant 1 : index
              kernel.launch.config workgroups(%n, %one, %one) workgroup_size(%one, %one, %one) : index
            } launch(%n: index, %x: buffer) {
              %zero = index.constant 0 : offset
              %view = buffer.view %x[%zero] : buffer -> view<[%n]xf32>
              %at = kernel.workgroup.id<x> : index
              %value = view.load %view[%at] : view<[%n]xf32> -> f32
              %sum = scalar.addf %value, %value : f32
              view.store %sum, %view[%at] : f32, view<[%n]xf32>
              kernel.return
            }";
        let takes = Takes { target: Sm::new(90), version: (8, 0), shared_bytes_max: 48 << 10, overlaps: false };
        let mut image = loom_compiler::compile_cpu("twice.loom", text, "twice", &BTreeMap::new()).expect("it compiles");
        let ptx = of_image(&image, &takes).expect("it compiles for a GPU too");
        assert_eq!((ptx.source, ptx.checked), (image.source, true));
        assert!(ptx.text.contains("add.rn.f32"), "{}", ptx.text);
        // And so after it was on disk.
        image = CpuImage::decode(&image.encode().expect("it is short")).expect("it was written so");
        assert_eq!(of_image(&image, &takes).expect("as before"), ptx);
        image.origin = None;
        assert_eq!(
            of_image(&image, &takes).unwrap_err().to_string(),
            "unsupported: kernel twice: its image came without the text that it was compiled from"
        );
    }
}

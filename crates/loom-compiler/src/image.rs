//! Text to what the CPU backend loads, in one call.

use std::collections::BTreeMap;

use crate::diag::Diagnostics;
use crate::ir::{Kernel, Span};
use crate::module::Module;
use crate::ptx;
use crate::tile::{self, CpuImage, Origin};

impl Origin {
    /// The module that the kernel was specialised from.
    ///
    /// # Errors
    /// As [`Module::parse`] and [`Module::link`]; none for an origin that an image came with.
    pub fn module(&self) -> Result<Module, Diagnostics> {
        let modules = self.texts.iter().map(|(name, text)| Module::parse(name, text));
        let mut modules = modules.collect::<Result<Vec<_>, _>>()?.into_iter();
        let first = modules.next().unwrap_or_default();
        let libraries: Vec<Module> = modules.collect();
        if libraries.is_empty() { Ok(first) } else { first.link(&libraries.iter().collect::<Vec<_>>()) }
    }
}

/// Parses `source` (called `source_name` in messages) and compiles `kernel`, a symbol or export name, with `config` bound.
///
/// # Errors
/// As [`Module::parse`] and [`Module::specialise`]; and what the tile compiler can not express, at the op it names.
pub fn compile_cpu(
    source_name: &str,
    source: &str,
    kernel: &str,
    config: &BTreeMap<String, String>,
) -> Result<CpuImage, Diagnostics> {
    Module::parse(source_name, source)?.compile_cpu(kernel, config)
}

impl Module {
    /// Compiles `kernel`, a symbol or export name, with `config` bound.
    ///
    /// # Errors
    /// As [`Self::specialise`]; and what the tile compiler can not express, at the op it names.
    pub fn compile_cpu(&self, kernel: &str, config: &BTreeMap<String, String>) -> Result<CpuImage, Diagnostics> {
        let specialised = self.specialise(kernel, config)?;
        let mut image = tile::compile(&specialised).map_err(|unsupported| {
            self.refusal(unsupported.span, &format!("{} is not supported on the CPU", unsupported.what))
        })?;
        image.origin = Some(Box::new(self.origin(kernel, config)));
        Ok(image)
    }

    /// What `kernel` with `config` bound is compiled from, for a device that compiles it again.
    pub fn origin(&self, kernel: &str, config: &BTreeMap<String, String>) -> Origin {
        Origin { texts: self.texts(), kernel: kernel.to_owned(), config: config.clone() }
    }

    /// The texts it was made of, by name.
    fn texts(&self) -> Vec<(String, String)> {
        let starts = self.files.iter().map(|file| (file.name.clone(), file.start as usize));
        let starts: Vec<_> = std::iter::once((self.name.clone(), 0)).chain(starts).collect();
        let ends = starts.iter().skip(1).map(|(_, start)| *start).chain([self.source.len()]);
        let texts =
            starts.iter().zip(ends).map(|((name, start), end)| (name.clone(), self.source[*start..end].to_owned()));
        texts.collect()
    }

    /// Emits `kernel`, a symbol or export name, as PTX, with `config` bound and the text's lines beside the instructions.
    ///
    /// # Errors
    /// As [`Self::specialise`]; and what PTX or the target does not express, at the op it names.
    pub fn compile_ptx(
        &self,
        kernel: &str,
        config: &BTreeMap<String, String>,
        options: &ptx::Options,
    ) -> Result<ptx::Image, Diagnostics> {
        let kernel = self.specialise(kernel, config)?;
        self.ptx_of(&kernel, options).map_err(|unsupported| {
            let message = format!("{} is not supported on {}", unsupported.what, unsupported.target);
            self.refusal(unsupported.span, &message)
        })
    }

    /// The same of a kernel that was specialised from this text.
    ///
    /// # Errors
    /// As [`ptx::emit`].
    pub fn ptx_of(&self, kernel: &Kernel, options: &ptx::Options) -> Result<ptx::Image, ptx::Unsupported> {
        ptx::emit(kernel, &self.source, options)
    }

    /// One refusal at `span` of the text: what an emitter says of an op that it does not express.
    pub fn refusal(&self, span: Span, message: &str) -> Diagnostics {
        let mut diagnostics = Diagnostics::of_files(&self.name, &self.files);
        diagnostics.push(&self.source, span, message);
        diagnostics
    }
}

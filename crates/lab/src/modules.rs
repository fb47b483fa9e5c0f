//! Kernel modules for the guest: the ones asked for and what they need, in the order of loading.
//!
//! In: a kernel's module folder and module names. Out: names and bytes of .ko files, dependencies first. Must not: run
//! depmod: each module says itself what it depends on (its `.modinfo`), which is all that a handful of them needs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{LabError, file_error};
use crate::kernel::Kernel;
use crate::vmlinux::decompress_xz;

/// A module, ready to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Module {
    pub name: String,
    pub bytes: Vec<u8>,
}

/// The modules and all they depend on, dependencies first. Modules that are built into the kernel are left out.
pub(crate) fn in_load_order(kernel: &Kernel, names: &[String]) -> Result<Vec<Module>, LabError> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let mut files = BTreeMap::new();
    gather(&kernel.modules.join("kernel"), &mut files)?;
    let built_in = fs::read_to_string(kernel.modules.join("modules.builtin")).unwrap_or_default();
    let built_in: Vec<String> = built_in.lines().map(|line| module_name(Path::new(line))).collect();
    let mut loader = Loader { kernel, files, built_in, done: Vec::new() };
    for name in names {
        loader.add(&name.replace('-', "_"))?;
    }
    Ok(loader.done)
}

struct Loader<'a> {
    kernel: &'a Kernel,
    files: BTreeMap<String, PathBuf>,
    built_in: Vec<String>,
    done: Vec<Module>,
}

impl Loader<'_> {
    fn add(&mut self, name: &str) -> Result<(), LabError> {
        if self.done.iter().any(|module| module.name == name) || self.built_in.iter().any(|known| known == name) {
            return Ok(());
        }
        let no_such = || LabError::NoSuchModule { kernel: self.kernel.release.clone(), module: name.to_owned() };
        let path = self.files.get(name).ok_or_else(no_such)?.clone();
        let mut bytes = fs::read(&path).map_err(file_error(&path))?;
        if path.extension().is_some_and(|ending| ending == "xz") {
            bytes = decompress_xz(&bytes)
                .map_err(|error| LabError::Image { path: path.clone(), what: error.to_string() })?;
        }
        for dependency in dependencies(&bytes) {
            self.add(&dependency)?;
        }
        self.done.push(Module { name: name.to_owned(), bytes });
        Ok(())
    }
}

fn gather(folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<(), LabError> {
    for entry in fs::read_dir(folder).map_err(file_error(folder))? {
        let entry = entry.map_err(file_error(folder))?;
        let path = entry.path();
        if entry.file_type().map_err(file_error(&path))?.is_dir() {
            gather(&path, files)?;
        } else if path.to_string_lossy().contains(".ko") {
            files.insert(module_name(&path), path);
        }
    }
    Ok(())
}

/// `kernel/lib/lz4/lz4_compress.ko.xz` is lz4_compress; the kernel takes - and _ for the same.
fn module_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split(".ko").next().unwrap_or_default().replace('-', "_")
}

/// The list behind `depends=` in a module's information.
fn dependencies(module: &[u8]) -> Vec<String> {
    let key = b"\0depends=";
    let Some(at) = module.windows(key.len()).position(|window| window == key) else { return Vec::new() };
    let value = &module[at + key.len()..];
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    let names = String::from_utf8_lossy(&value[..end]).into_owned();
    names.split(',').filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel_with(modules: &[(&str, &str)]) -> (tempfile::TempDir, Kernel) {
        let folder = tempfile::tempdir().unwrap();
        let kernel = Kernel {
            release: "6.1.0-56-amd64".to_owned(),
            image: folder.path().join("vmlinux"),
            modules: folder.path().join("modules"),
        };
        for (path, depends) in modules {
            let path = kernel.modules.join("kernel").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("\x7fELF..\0license=GPL\0depends={depends}\0name=x\0")).unwrap();
        }
        fs::write(kernel.modules.join("modules.builtin"), "kernel/mm/zpool.ko\n").unwrap();
        (folder, kernel)
    }

    #[test]
    fn what_a_module_needs_is_loaded_before_it_and_once() {
        let (_folder, kernel) = kernel_with(&[
            ("drivers/block/zram/zram.ko", "zsmalloc,lz4-compress,zpool"),
            ("mm/zsmalloc.ko", ""),
            ("lib/lz4_compress.ko", ""),
        ]);
        let names = |asked: &[&str]| -> Vec<String> {
            let asked: Vec<String> = asked.iter().map(|name| (*name).to_owned()).collect();
            in_load_order(&kernel, &asked).unwrap().into_iter().map(|module| module.name).collect()
        };
        assert_eq!(names(&["zram", "zsmalloc"]), ["zsmalloc", "lz4_compress", "zram"]);
        assert_eq!(names(&["zpool"]), Vec::<String>::new(), "what is built in needs no file");
        let error = in_load_order(&kernel, &["dax".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("6.1.0-56-amd64") && error.contains("dax"), "{error}");
    }
}

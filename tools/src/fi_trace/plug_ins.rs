//! Plug-ins with probes, and the script for bpftrace.
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Script with `@plug-ins@` in place of the file.
const SCRIPT: &str = include_str!("libfabric.bt");

/// Names of all probes.
const PROBES: [&str; 7] = ["enable", "send", "refuse", "match", "complete", "connect", "lose"];

/// Maximum bytes of a plug-in to read.
const MAX_PLUG_IN: u64 = 1 << 30;

/// Plug-in with the names of its probes.
#[derive(Debug)]
pub(crate) struct ProbedFile {
    path: PathBuf,
    probes: Vec<&'static str>,
}

/// Returns the names of the probes described by notes in the file.
fn probes_of(path: &Path) -> Vec<&'static str> {
    let is_readable =
        fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() <= MAX_PLUG_IN);
    let Some(bytes) = is_readable.then(|| fs::read(path).ok()).flatten() else { return Vec::new() };
    let has = |name: &&str| {
        let note = format!("libfabric\0{name}\0");
        bytes.windows(note.len()).any(|here| here == note.as_bytes())
    };
    PROBES.iter().copied().filter(has).collect()
}

/// Returns true for the file name of a plug-in.
fn is_plug_in(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy());
    name.is_some_and(|name| name.starts_with("lib") && name.ends_with("-fi.so"))
}

/// Returns true if bpftrace can read the path in a script.
fn can_be_named(path: &Path) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    path.to_str().is_some_and(|text| text.chars().all(allowed))
}

/// Returns the plug-ins in a directory.
fn in_folder(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths.filter(|path| is_plug_in(path)).filter_map(|path| fs::canonicalize(path).ok()).collect()
}

/// Returns the path of a file of a process, as seen by this program. In a container the file is reached
/// through the root of the process.
fn seen_path(root: &Path, path: &Path) -> Option<PathBuf> {
    let within = root.join(path.strip_prefix("/").ok()?);
    let number = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    if number(path).is_some() && number(path) == number(&within) {
        // Equal files get equal paths.
        return fs::canonicalize(path).ok();
    }
    within.exists().then_some(within)
}

/// Returns the plug-ins mapped by a process.
fn of_process(pid: u32) -> Result<Vec<PathBuf>, String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))
        .map_err(|error| format!("process {pid}: {error}"))?;
    let paths = maps.lines().filter_map(|line| Some(PathBuf::from(&line[line.find('/')?..])));
    let paths: BTreeSet<_> = paths.filter(|path| is_plug_in(path)).collect();
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    Ok(paths.iter().filter_map(|path| seen_path(&root, path)).collect())
}

/// Returns one path for each file.
fn without_repetition(paths: Vec<PathBuf>) -> BTreeSet<PathBuf> {
    let mut files = BTreeSet::new();
    let mut is_new = |path: &PathBuf| {
        fs::metadata(path).is_ok_and(|file| files.insert((file.dev(), file.ino())))
    };
    paths.into_iter().filter(|path| is_new(path)).collect()
}

/// Returns the directories with the plug-ins of this installation and of `FI_PROVIDER_PATH`.
fn default_folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    if let Some(paths) = std::env::var_os("FI_PROVIDER_PATH") {
        folders.extend(std::env::split_paths(&paths));
    }
    let Ok(program) = std::env::current_exe() else { return folders };
    let Some(prefix) = program.parent().and_then(Path::parent) else { return folders };
    folders.extend(["lib/libfabric", "lib64/libfabric"].map(|folder| prefix.join(folder)));
    // lib/x86_64-linux-gnu and the like
    let more = fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten();
    folders.extend(more.map(|entry| entry.path().join("libfabric")));
    folders
}

/// Returns the plug-ins with probes: those of a directory, of processes, or of this installation.
pub(crate) fn find(folder: Option<&Path>, pids: &[u32]) -> Result<Vec<ProbedFile>, String> {
    let mut all = Vec::new();
    let searched = match folder {
        Some(folder) => {
            all = in_folder(folder);
            folder.display().to_string()
        }
        None if !pids.is_empty() => {
            // A child process may have ended meanwhile.
            let mut ended = None;
            for pid in pids {
                match of_process(*pid) {
                    Ok(files) => all.extend(files),
                    Err(error) => ended = ended.or(Some(error)),
                }
            }
            if let (true, Some(error)) = (all.is_empty(), ended) {
                return Err(error);
            }
            "these processes".to_string()
        }
        None => {
            let folders = default_folders();
            folders.iter().for_each(|folder| all.extend(in_folder(folder)));
            "the directories of this installation (-l names another one)".to_string()
        }
    };
    let probed = without_repetition(all)
        .into_iter()
        .map(|path| ProbedFile { probes: probes_of(&path), path });
    let found: Vec<_> = probed.filter(|file| !file.probes.is_empty()).collect();
    if found.is_empty() {
        return Err(format!("no plug-in with probes in {searched}"));
    }
    if let Some(file) = found.iter().find(|file| !can_be_named(&file.path)) {
        return Err(format!("bpftrace takes no such path: {}", file.path.display()));
    }
    Ok(found)
}

/// Returns the script for these plug-ins, and for these processes if there are any. bpftrace accepts
/// no probe missing in its file.
pub(crate) fn script(plug_ins: &[ProbedFile], pids: &[u32]) -> String {
    let filter: Vec<_> = pids.iter().map(|pid| format!("pid == {pid}")).collect();
    let mut out = String::new();
    let mut lines = SCRIPT.lines();
    while let Some(line) = lines.next() {
        let Some((_, probe)) = line.split_once("@plug-ins@:libfabric:") else {
            out += line;
            out.push('\n');
            continue;
        };
        let with = plug_ins.iter().filter(|file| file.probes.contains(&probe));
        let names: Vec<_> =
            with.map(|file| format!("usdt:{}:libfabric:{probe}", file.path.display())).collect();
        if names.is_empty() {
            // The block of this probe.
            lines.by_ref().find(|line| *line == "}");
            continue;
        }
        out += &names.join(",\n");
        if !filter.is_empty() {
            out += &format!("\n/{}/", filter.join(" || "));
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, probes: &[&'static str]) -> ProbedFile {
        ProbedFile { path: path.into(), probes: probes.to_vec() }
    }

    #[test]
    fn script_names_each_plug_in_for_its_probes() {
        let files = [file("/a/libtcp-fi.so", &PROBES), file("/a/liblnx-fi.so", &PROBES[..5])];
        let text = script(&files, &[5, 6]);
        for probe in &PROBES[..5] {
            let two = format!(
                "usdt:/a/libtcp-fi.so:libfabric:{probe},\nusdt:/a/liblnx-fi.so:libfabric:{probe}\n/pid == 5 || pid == 6/\n{{"
            );
            assert!(text.contains(&two), "{probe}");
        }
        assert!(!text.contains("liblnx-fi.so:libfabric:lose") && !text.contains('@'));
    }

    #[test]
    fn probe_of_no_plug_in_is_left_out() {
        let text = script(&[file("/a/libverbs-fi.so", &PROBES[..2])], &[]);
        assert_eq!(text.matches("printf").count(), 3, "{text}");
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }

    #[test]
    fn paths_with_syntax_of_bpftrace_are_refused() {
        assert!(can_be_named(Path::new("/usr/lib/x86_64-linux-gnu/libfabric/libtcp-fi.so")));
        assert!(!can_be_named(Path::new("/tmp/a:b/libtcp-fi.so")));
        assert!(!can_be_named(Path::new("/tmp/{/libtcp-fi.so")));
    }
}

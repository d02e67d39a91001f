//! The generated headers against the facts of the C ABI in `ctest/abi/*.tsv`:
//! C programs made from the rows are compiled against `include/` and run.
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

const LAYOUT: &str = include_str!("../ctest/abi/abi_layout.tsv");
const CONSTANTS: &str = include_str!("../ctest/abi/abi_constants.tsv");
const FUNCTIONS: &str = include_str!("../ctest/abi/abi_functions.tsv");

const ALL_HEADERS: &[&str] = &[
    "fabric.h",
    "fi_atomic.h",
    "fi_cm.h",
    "fi_collective.h",
    "fi_domain.h",
    "fi_endpoint.h",
    "fi_eq.h",
    "fi_errno.h",
    "fi_ext.h",
    "fi_ext_efa.h",
    "fi_profile.h",
    "fi_rma.h",
    "fi_tagged.h",
    "fi_trigger.h",
    "fi_xpu.h",
    "fi_xpu_device.h",
    "providers/fi_log.h",
    "providers/fi_peer.h",
    "providers/fi_prov.h",
];

const C_STANDARDS: &[&str] = &["gnu99", "c11", "c17"];
const CXX_STANDARDS: &[&str] = &["c++11", "c++20"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn compiler() -> String {
    env::var("CC").unwrap_or_else(|_| "cc".into())
}

fn rows(tsv: &str) -> impl Iterator<Item = Vec<&str>> {
    tsv.lines().skip(1).map(|row| row.split('\t').collect())
}

fn includes() -> String {
    ALL_HEADERS.iter().map(|header| format!("#include <rdma/{header}>\n")).collect()
}

/// Writes a file of the test, with a name unique among tests.
fn source(test: &str, name: &str, text: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path
}

fn compile(compiler: &str, arguments: &[&str], source: &Path) -> Output {
    Command::new(compiler)
        .args(["-Wall", "-Wextra", "-Werror", "-I"])
        .arg(root().join("include"))
        .args(arguments)
        .arg(source)
        .output()
        .unwrap_or_else(|error| panic!("{compiler} does not run: {error}"))
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}

/// Compiles and runs a program printing a line per difference, then "end".
fn differences(test: &str, program: &str) -> Vec<String> {
    let source = source(test, "rows.c", program);
    let binary = source.with_extension("");
    let output = compile(&compiler(), &["-O0", "-o", binary.to_str().unwrap()], &source);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let output = Command::new(&binary).output().unwrap();
    let mut lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
    assert_eq!(lines.pop().as_deref(), Some("end"), "the program did not reach its end");
    lines
}

/// Checks offset, size and type of every field; size and alignment of every struct.
fn layout_differences(test: &str, tsv: &str) -> Vec<String> {
    let mut program = includes();
    program += "#include <stdio.h>
#define IS(name, actual, expected) do { \\
	if ((size_t) (actual) != (size_t) (expected)) \\
		printf(\"%s: %zu, should be %zu\\n\", name, (size_t) (actual), (size_t) (expected)); \\
	} while (0)
#define TYPE(name, type, field, expected) do { \\
	if (!__builtin_types_compatible_p(__typeof__(((struct type *) 0)->field), __typeof__(expected))) \\
		printf(\"%s: not of type %s\\n\", name, #expected); \\
	} while (0)
int main(void)
{
";
    for row in rows(tsv) {
        let [ty, field, offset, size, align, c_type, ..] = row[..] else { panic!("{row:?}") };
        if field == "(total)" {
            writeln!(program, "\tIS(\"sizeof {ty}\", sizeof(struct {ty}), {size});").unwrap();
            writeln!(program, "\tIS(\"alignof {ty}\", __alignof__(struct {ty}), {align});")
                .unwrap();
            continue;
        }
        writeln!(
            program,
            "\tIS(\"offset of {ty}.{field}\", offsetof(struct {ty}, {field}), {offset});"
        )
        .unwrap();
        if c_type.ends_with("[]") {
            // A flexible array has no size; the struct ends where it starts.
            assert_eq!(size, "0");
            writeln!(program, "\tIS(\"end of {ty}\", sizeof(struct {ty}), {offset});").unwrap();
        } else {
            let member = format!("((struct {ty} *) 0)->{field}");
            writeln!(program, "\tIS(\"sizeof {ty}.{field}\", sizeof({member}), {size});").unwrap();
        }
        if !c_type.ends_with("{...}") {
            writeln!(program, "\tTYPE(\"{ty}.{field}\", {ty}, {field}, {c_type});").unwrap();
        }
    }
    program += "\tputs(\"end\");\n\treturn 0;\n}\n";
    differences(test, &program)
}

/// Checks every value. Macros of the API must be macros, because programs use `#ifdef`. Enum values
/// must not be macros, because tools create bindings for other languages from the enums.
fn constant_differences(test: &str, tsv: &str) -> Vec<String> {
    let mut program = includes();
    program += "#include <stdio.h>
static void is(const char *name, long long actual, long long expected)
{
	if (actual != expected)
		printf(\"%s: %lld, should be %lld\\n\", name, actual, expected);
}
static void text_is(const char *name, const char *actual, const char *expected)
{
	if (strcmp(actual, expected))
		printf(\"%s: \\\"%s\\\", should be \\\"%s\\\"\\n\", name, actual, expected);
}
int main(void)
{
";
    for row in rows(tsv) {
        let [name, value, _, group, ..] = row[..] else { panic!("{row:?}") };
        if group.contains("macro") {
            writeln!(program, "#ifndef {name}\n\tputs(\"{name}: not a macro\");\n#endif").unwrap();
        } else {
            writeln!(program, "#ifdef {name}\n\tputs(\"{name}: a macro\");\n#endif").unwrap();
        }
        match group {
            // Their text is looked at below.
            "macro-nonint" => {}
            "string-macro" => {
                writeln!(program, "\ttext_is(\"{name}\", {name}, {value});").unwrap();
            }
            _ => {
                let value = if value == "-9223372036854775808" { "(-1LL << 63)" } else { value };
                writeln!(program, "\tis(\"{name}\", (long long) {name}, {value}LL);").unwrap();
            }
        }
    }
    program += "\tputs(\"end\");\n\treturn 0;\n}\n";
    let mut found = differences(test, &program);

    // Replacement text of a macro without a value, ignoring white space.
    let source = source(test, "macros.c", &includes());
    let output = compile("gcc", &["-E", "-dM"], &source);
    let definitions = text(&output.stdout);
    let squeeze = |text: &str| text.split_whitespace().collect::<String>();
    for row in rows(tsv) {
        let [name, value, _, "macro-nonint", ..] = row[..] else { continue };
        let start = format!("#define {name} ");
        let actual = definitions.lines().find_map(|line| line.strip_prefix(&start));
        if actual.map(squeeze) != Some(squeeze(value)) {
            found.push(format!("{name}: {actual:?}, should be {value}"));
        }
    }
    found
}

/// Returns the enums declared in a preprocessed C text: each one's name, possibly none, and the
/// names of its values.
fn enums(text: &str) -> Vec<(&str, Vec<&str>)> {
    let mut enums = Vec::new();
    for declaration in text.split("enum ").skip(1) {
        let Some((name, body)) = declaration.split_once('{') else { continue };
        let (name, body) = (name.trim(), body.split('}').next().unwrap_or_default());
        if name.contains(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            continue;
        }
        let values = body.split(',').map(|value| value.split('=').next().unwrap_or(value).trim());
        enums.push((name, values.filter(|value| !value.is_empty()).collect()));
    }
    enums
}

/// Checks the enum values are declared in the order of the rows, so tools numbering unnamed enums
/// give them the same numbers.
fn order_differences(test: &str, tsv: &str) -> Vec<String> {
    let source = source(test, "enums.c", &includes());
    let output = compile("gcc", &["-E", "-P"], &source);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let text = text(&output.stdout);
    let declared = enums(&text);
    // The rows of a header are in its order.
    let mut wanted: Vec<([&str; 2], Vec<&str>)> = Vec::new();
    for row in rows(tsv) {
        let [name, _, _, group, header, ..] = row[..] else { panic!("{row:?}") };
        let Some(group) = group.strip_prefix("enum ") else { continue };
        let index = [if group == "(anon)" { "" } else { group }, header];
        match wanted.iter_mut().find(|(of, _)| *of == index) {
            Some((_, values)) => values.push(name),
            None => wanted.push((index, vec![name])),
        }
    }
    let mut found = Vec::new();
    for ([group, header], values) in wanted {
        let here: Vec<&str> = declared
            .iter()
            .filter(|(name, _)| *name == group)
            .flat_map(|(_, values)| values.iter().copied())
            .filter(|value| values.contains(value))
            .collect();
        if here != values {
            let at = here.iter().zip(&values).take_while(|(one, other)| one == other).count();
            let (is, should) = (here.get(at), values.get(at));
            found.push(format!("{header}, enum {group}: {is:?}, should be {should:?}"));
        }
    }
    found
}

/// Checks the type of every function, and every function-like macro being one.
fn function_differences(test: &str, tsv: &str) -> Vec<String> {
    let mut program = includes();
    for row in rows(tsv) {
        let [name, kind, ty, ..] = row[..] else { panic!("{row:?}") };
        match kind {
            "fn-macro" => {
                let name = name.split('(').next().unwrap();
                writeln!(program, "#ifndef {name}\n#error \"{name} is missing\"\n#endif").unwrap();
            }
            "export" | "inline" => {
                writeln!(program, "extern __typeof__({ty}) *const pointer_to_{name};").unwrap();
                writeln!(program, "__typeof__({ty}) *const pointer_to_{name} = {name};").unwrap();
            }
            _ => panic!("a function of an unknown kind: {kind}"),
        }
    }
    let source = source(test, "functions.c", &program);
    let output = compile(&compiler(), &["-fsyntax-only"], &source);
    if output.status.success() {
        return Vec::new();
    }
    let errors = text(&output.stderr);
    errors.lines().filter(|line| line.contains("error:")).map(str::to_owned).collect()
}

#[test]
fn the_headers_have_the_layouts_constants_and_functions_of_the_abi() {
    let counts = [LAYOUT, CONSTANTS, FUNCTIONS].map(|tsv| rows(tsv).count());
    let found = [
        layout_differences("all_layout", LAYOUT),
        constant_differences("all_constants", CONSTANTS),
        order_differences("all_enums", CONSTANTS),
        function_differences("all_functions", FUNCTIONS),
    ]
    .concat();
    println!(
        "{} layout rows, {} constants, {} functions: {} differences",
        counts[0],
        counts[1],
        counts[2],
        found.len()
    );
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert_eq!(counts, [895, 564, 213], "rows are missing from ctest/abi");
}

/// Verifies the checks above with one changed row.
#[test]
fn a_wrong_fact_is_noticed() {
    let change = |tsv: &str, row: &str, wrong: &str| {
        assert_eq!(tsv.matches(row).count(), 1, "{row:?} is one row");
        tsv.replace(row, wrong)
    };
    let layout = |row: &str, wrong: &str| {
        layout_differences("mutated_layout", &change(LAYOUT, row, wrong)).len()
    };
    assert_eq!(layout("fi_info\tnic\t112\t8", "fi_info\tnic\t104\t8"), 1);
    assert_eq!(layout("fi_ep_attr\t(total)\t0\t104", "fi_ep_attr\t(total)\t0\t96"), 1);
    assert_eq!(layout("fi_eq_cm_entry\tdata\t16\t0", "fi_eq_cm_entry\tdata\t8\t0"), 2);
    assert_eq!(
        layout(
            "fi_ops_ep\tcancel\t8\t8\t-\tssize_t (*)(fid_t, void *)",
            "fi_ops_ep\tcancel\t8\t8\t-\tint (*)(fid_t, void *)"
        ),
        1
    );

    let constant = |row: &str, wrong: &str| {
        constant_differences("mutated_constants", &change(CONSTANTS, row, wrong)).len()
    };
    assert_eq!(constant("FI_HMEM\t140737488355328", "FI_HMEM\t140737488355329"), 1);
    assert_eq!(constant("FI_LIB_SUFFIX\t\"fi.so\"", "FI_LIB_SUFFIX\t\"fi.a\""), 1);
    assert_eq!(
        constant("FI_LOG_CNTR\t9\t0x9\tenum fi_log_subsys", "FI_LOG_CNTR\t9\t0x9\tmacro"),
        1
    );
    assert_eq!(
        constant(
            "FI_HMEM\t140737488355328\t0x800000000000\tmacro",
            "FI_HMEM\t140737488355328\t0x800000000000\tenum (anon)"
        ),
        1
    );
    let order = |row: &str, wrong: &str| {
        order_differences("mutated_enums", &change(CONSTANTS, row, wrong)).len()
    };
    assert_eq!(order("FI_TAG_MPI\t1\t0x1\tenum (anon)", "FI_TAG_CCL\t2\t0x2\tenum (anon)"), 1);
    assert_eq!(constant("EXTERNALLY_VISIBLE\texternally", "EXTERNALLY_VISIBLE\tinternally"), 1);

    let function = |row: &str, wrong: &str| {
        function_differences("mutated_functions", &change(FUNCTIONS, row, wrong)).len()
    };
    assert_eq!(function("fi_cntr_read\tinline\tuint64_t", "fi_cntr_read\tinline\tint64_t"), 1);
    assert_eq!(function("FI_WARN_ONCE(", "FI_WARN_TWICE("), 1);
}

/// Runs every compilation, two at a time, and returns the failures.
fn compile_all(jobs: Vec<(String, Vec<String>, PathBuf)>) -> Vec<String> {
    let jobs = std::sync::Mutex::new(jobs);
    let failures = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some((compiler, arguments, source)) = jobs.lock().unwrap().pop() else {
                        break;
                    };
                    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                    let output = compile(&compiler, &arguments, &source);
                    if !output.status.success() {
                        failures.lock().unwrap().push(format!(
                            "{compiler} {arguments:?} {}:\n{}",
                            source.display(),
                            text(&output.stderr)
                        ));
                    }
                }
            });
        }
    });
    failures.into_inner().unwrap()
}

/// Returns the available C and C++ compilers, with their options.
fn compilers() -> Vec<(&'static str, &'static str, &'static str)> {
    let mut compilers = Vec::new();
    for (c, cxx) in [("gcc", "g++"), ("clang", "clang++")] {
        let here = |name: &str| Command::new(name).arg("--version").output().is_ok();
        if here(c) && here(cxx) {
            compilers.extend(C_STANDARDS.iter().map(|standard| (c, "c", *standard)));
            compilers.extend(CXX_STANDARDS.iter().map(|standard| (cxx, "c++", *standard)));
        } else {
            println!("no {c} here: its half of the check is left out");
        }
    }
    assert!(!compilers.is_empty(), "no C compiler");
    compilers
}

#[test]
fn every_header_compiles_alone_in_every_standard() {
    let mut jobs = Vec::new();
    for header in ALL_HEADERS {
        let name = format!("{}.c", header.replace('/', "_"));
        let source = source("alone", &name, &format!("#include <rdma/{header}>\n"));
        for (compiler, language, standard) in compilers() {
            let arguments = ["-fsyntax-only", "-x", language, &format!("-std={standard}")]
                .map(str::to_owned)
                .to_vec();
            jobs.push((compiler.to_owned(), arguments, source.clone()));
        }
    }
    println!("{} compilations", jobs.len());
    let failures = compile_all(jobs);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn header_list_matches_the_build_output() {
    let mut found = Vec::new();
    for folder in ["", "providers/"] {
        for entry in fs::read_dir(root().join("include/rdma").join(folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".h") {
                found.push(format!("{folder}{name}"));
            }
        }
    }
    found.sort();
    assert_eq!(found, ALL_HEADERS);
}

#[test]
fn programs_written_for_1_x_and_for_2_x_compile() {
    let source = root().join("ctest/abi/source_compat.c");
    let jobs = compilers()
        .into_iter()
        .map(|(compiler, language, standard)| {
            let arguments = ["-fsyntax-only", "-x", language, &format!("-std={standard}")]
                .map(str::to_owned)
                .to_vec();
            (compiler.to_owned(), arguments, source.clone())
        })
        .collect();
    let failures = compile_all(jobs);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

//! Inline calls and their exported twins, called from C: every argument arrives, the result is
//! returned, and impossible calls are rejected.
mod common;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

fn table(name: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(common::root().join("ctest/abi").join(name)).unwrap();
    text.lines().skip(1).map(|row| row.split('\t').map(str::to_owned).collect()).collect()
}

/// The parts of a C function type: `ret (a, b)` or `ret (*)(a, b)`.
fn parts(ty: &str) -> (&str, Vec<&str>) {
    let result = ty.split('(').next().unwrap().trim();
    let list = ty[ty.rfind('(').unwrap() + 1..].trim_end_matches(')');
    (result, list.split(", ").collect())
}

/// The test of one plain call, or `None` when it is not a plain one.
fn direct_call(
    name: &str,
    ty: &str,
    path: &str,
    guarded: bool,
    fields: &BTreeMap<(String, String), String>,
) -> Option<String> {
    // Written out in ctest/abi/calls.c: this one changes its argument, that one
    // takes a function.
    if path.is_empty() || ["fi_cq_readerr", "fi_profile_register_callback"].contains(&name) {
        return None;
    }
    let (result, parameters) = parts(ty);
    let object = match parameters[0] {
        "fid_t" => "fid_ep",
        pointer => pointer.strip_prefix("struct ")?.trim_end_matches(" *"),
    };
    let steps: Vec<&str> = path.split("->").collect();
    let [_, table_path @ .., slot] = &steps[..] else { panic!("{name}: {path}") };
    // "ops", or the "fid.ops" of an object whose fid's table it is.
    let from = steps[0].split_once('.').map(|(_, rest)| rest.to_owned());
    let table_path: Vec<String> =
        from.into_iter().chain(table_path.iter().map(|step| (*step).to_owned())).collect();
    let table_path = table_path.join(".");
    let table = if table_path == "fid.ops" || object == "fid" {
        "fi_ops".to_owned()
    } else {
        let pointer = &fields[&(object.to_owned(), table_path.clone())];
        pointer.strip_prefix("struct ")?.trim_end_matches(" *").to_owned()
    };
    let slot_type = &fields[&(table.clone(), (*slot).to_owned())];
    let (slot_result, slot_parameters) = parts(slot_type);
    if slot_parameters.len() != parameters.len() {
        return None;
    }

    let count = parameters.len();
    let mut c = String::new();
    let declared: Vec<String> =
        slot_parameters.iter().enumerate().map(|(i, ty)| format!("{ty} a{i}")).collect();
    let void = slot_result == "void";
    writeln!(c, "static {slot_result} slot_of_{name}({})\n{{", declared.join(", ")).unwrap();
    for i in 0..count {
        writeln!(c, "\tseen[{i}] = (uint64_t) (uintptr_t) a{i};").unwrap();
    }
    let answer = if void { String::new() } else { format!("\treturn ({slot_result}) 77;\n") };
    writeln!(c, "\tcalled++;\n{answer}}}").unwrap();

    let arguments: String =
        (1..count).map(|i| format!(", ({}) (uintptr_t) {}", parameters[i], 0x100 + i)).collect();
    let call =
        |form: &str, object: &str| format!("{form}(({}) {object}{arguments})", parameters[0]);
    let refused = |error: &str| match result {
        "int" | "ssize_t" => format!(" == -{error}"),
        _ => " == 0".to_owned(),
    };
    let expect = |form: &str, object: &str, outcome: &str| {
        if void {
            format!("\t{};\n", call(form, object))
        } else {
            format!("\tEXPECT({}{outcome});\n", call(form, object))
        }
    };
    writeln!(
        c,
        "static void test_{name}(void)
{{
	struct {table} table;
	struct {object} object;
	__typeof__({ty}) *exported = (__typeof__({ty}) *) symbol(\"{name}\");

	memset(&table, 0, sizeof(table));
	memset(&object, 0, sizeof(object));
	table.size = sizeof(table);
	table.{slot} = slot_of_{name};
	object.{table_path} = &table;
	called = 0;"
    )
    .unwrap();
    for form in [name, "exported"] {
        let seventy_seven =
            if result.ends_with('*') { format!(" == ({result}) 77") } else { " == 77".into() };
        c += "\tmemset(seen, 0, sizeof(seen));\n";
        c += &expect(form, "&object", &seventy_seven);
        c += "\tEXPECT(seen[0] == (uintptr_t) &object);\n";
        for i in 1..count {
            writeln!(c, "\tEXPECT(seen[{i}] == {});", 0x100 + i).unwrap();
        }
    }
    c += "\tEXPECT(called == 2);\n";
    c += &expect("exported", "NULL", &refused("FI_EINVAL"));
    writeln!(c, "\tobject.{table_path} = NULL;").unwrap();
    c += &expect("exported", "&object", &refused("FI_ENOSYS"));
    writeln!(
        c,
        "\tobject.{table_path} = &table;\n\ttable.size = offsetof(struct {table}, {slot});"
    )
    .unwrap();
    c += &expect("exported", "&object", &refused("FI_ENOSYS"));
    if guarded {
        c += &expect(name, "&object", &refused("FI_ENOSYS"));
    }
    writeln!(c, "\ttable.size = sizeof(table);\n\ttable.{slot} = NULL;").unwrap();
    c += &expect("exported", "&object", &refused("FI_ENOSYS"));
    if guarded {
        c += &expect(name, "&object", &refused("FI_ENOSYS"));
    }
    c += "\tEXPECT(called == 2);\n}\n";
    Some(c)
}

#[test]
fn every_call_reaches_its_slot_inline_and_exported_and_is_refused_without_one() {
    let fields: BTreeMap<(String, String), String> = table("abi_layout.tsv")
        .into_iter()
        .map(|row| ((row[0].clone(), row[1].clone()), row[5].clone()))
        .collect();
    let types: BTreeMap<String, String> = table("abi_functions.tsv")
        .into_iter()
        .filter(|row| row[1] == "inline")
        .map(|row| (row[0].clone(), row[2].clone()))
        .collect();

    let composed = fs::read_to_string(common::root().join("ctest/abi/calls.c")).unwrap();
    let (mut program, mut main, mut count) = (composed.clone(), String::new(), 0);
    for row in table("abi_inline_dispatch.tsv") {
        let (name, path, guarded) = (&row[1], &row[2], !row[3].is_empty());
        match direct_call(name, &types[name], path, guarded, &fields) {
            Some(test) => {
                program += &test;
                writeln!(main, "\ttest_{name}();").unwrap();
                count += 1;
            }
            None => assert!(
                composed.contains(&format!("CALL({name})"))
                    || composed.contains(&format!("PARAM({name},")),
                "{name} is neither a plain call nor in ctest/abi/calls.c"
            ),
        }
    }
    let folder = common::library_folder();
    writeln!(
        program,
        "int main(int argc, char **argv)
{{
	setvbuf(stdout, NULL, _IOLBF, 0);
	library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
	if (!library) {{
		printf(\"%s\\n\", dlerror());
		return 1;
	}}
{main}	composed();
	printf(\"%d failures\\n\", failures);
	return failures != 0;
}}"
    )
    .unwrap();

    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("calls.c");
    let binary = source.with_extension("");
    fs::write(&source, program).unwrap();
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut compile = Command::new(compiler);
    compile.args(["-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-rdynamic"]);
    compile.arg("-I").arg(common::root().join("include")).arg("-o").arg(&binary).arg(&source);
    common::stdout(compile.arg("-ldl"));

    // Not by status: what it prints says more.
    let output = Command::new(&binary).arg(folder.join("libfabric.so.1")).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    println!("{count} plain calls, {} composed ones: {printed}", types.len() - count);
    assert_eq!(printed, "0 failures\n");
    assert!(output.status.success());
    assert_eq!((count, types.len()), (147, 180));
}

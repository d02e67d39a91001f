//! Generates `include/rdma/**.h` from `src/abi`, `include/kfi/*.h` from those, and the rows of the
//! ABI test.
//!
//! One file of `src/abi` is one header, and two are `fabric.h`. cbindgen writes the types and the prototypes. This file
//! writes the constants (cbindgen cannot give them C's types), the unnamed enums (`unnamed_enum!`)
//! and the inline calls (from the list in `src/abi/calls.rs`). Elements inexpressible in Rust -
//! function-like macros, inlines doing more than a jump through a table - are C text in
//! `capi/headers/`: `.macros.h` goes before the declarations, `.inline.h` after them.
//!
//! The headers are committed, and written only when their text changes, so a build from a clean
//! checkout leaves the tree unchanged.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::{env, fs, path::Path};

use syn::parse::{Parse, ParseStream, Parser};
use syn::visit::{self, Visit};
use syn::{Token, braced, parenthesized};

/// Public header: its Rust module and its includes.
struct PublicHeader {
    module: &'static str,
    /// Its folder under `include/`.
    folder: &'static str,
    includes: &'static [&'static str],
}

const fn header(module: &'static str, includes: &'static [&'static str]) -> PublicHeader {
    PublicHeader { module, folder: "rdma", includes }
}

const fn provider_header(module: &'static str, includes: &'static [&'static str]) -> PublicHeader {
    PublicHeader { module, folder: "rdma/providers", includes }
}

/// Public headers. The includes are part of the interface: programs rely on their declarations.
const HEADERS: &[PublicHeader] = &[
    header("fi_errno", &["errno.h"]),
    header("fabric", &["stdint.h", "stddef.h", "sys/types.h", "sys/uio.h", "rdma/fi_errno.h"]),
    header("fi_eq", &["poll.h", "pthread.h", "rdma/fabric.h"]),
    header("fi_domain", &["string.h", "rdma/fabric.h", "rdma/fi_eq.h"]),
    header("fi_endpoint", &["rdma/fabric.h", "rdma/fi_domain.h"]),
    header("fi_cm", &["rdma/fi_endpoint.h"]),
    header("fi_rma", &["rdma/fabric.h", "rdma/fi_endpoint.h"]),
    header("fi_tagged", &["rdma/fabric.h", "rdma/fi_endpoint.h"]),
    header("fi_atomic", &["rdma/fabric.h", "rdma/fi_endpoint.h", "rdma/fi_rma.h"]),
    header("fi_collective", &["rdma/fi_atomic.h", "rdma/fi_cm.h"]),
    header(
        "fi_trigger",
        &[
            "rdma/fabric.h",
            "rdma/fi_endpoint.h",
            "rdma/fi_rma.h",
            "rdma/fi_tagged.h",
            "rdma/fi_atomic.h",
        ],
    ),
    header("fi_profile", &["rdma/fabric.h", "rdma/fi_domain.h", "rdma/fi_endpoint.h"]),
    header("fi_xpu", &["rdma/fabric.h", "rdma/fi_domain.h"]),
    header("fi_xpu_device", &["rdma/fi_xpu.h"]),
    provider_header("fi_prov", &["rdma/fabric.h"]),
    provider_header("fi_log", &["rdma/fabric.h", "rdma/providers/fi_prov.h"]),
    provider_header("fi_peer", &["rdma/fi_domain.h", "rdma/fi_endpoint.h", "rdma/fi_eq.h"]),
    header(
        "fi_ext",
        &[
            "stdbool.h",
            "rdma/fabric.h",
            "rdma/fi_eq.h",
            "rdma/fi_endpoint.h",
            "rdma/providers/fi_prov.h",
            "rdma/providers/fi_log.h",
            // Location of these declarations of fi_ext.h up to 1.17.
            "rdma/providers/fi_peer.h",
        ],
    ),
    header("fi_ext_efa", &["stdbool.h", "rdma/fi_domain.h"]),
];

/// Fields with a second name in C, sharing an unnamed union: struct, field, declaration of the
/// other name. Rust has only the first name.
const UNION_ALIASES: &[(&str, &str, &str)] = &[
    ("fi_domain_attr", "data_progress", "enum fi_progress progress"),
    ("fi_mr_attr", "mr_iov", "const struct fi_mr_dmabuf *dmabuf"),
];

/// Headers of kfabric: the module of `src/abi` with the corresponding names, and the includes in
/// addition to its header. Each name beginning with fi has one beginning with kfi; the remaining
/// content of kfabric is in `capi/headers/<name>.inline.h`.
const KFI_HEADERS: &[(&str, &str, &[&str])] = &[
    ("kfi_errno", "fi_errno", &[]),
    ("kfi_log", "fi_errno", &["linux/printk.h"]),
    (
        "kfabric",
        "fabric",
        &[
            "errno.h",
            "poll.h",
            "pthread.h",
            "sched.h",
            "stdlib.h",
            "string.h",
            "unistd.h",
            "sys/eventfd.h",
            "rdma/fi_eq.h",
            "kfi_errno.h",
        ],
    ),
    ("kfi_eq", "fi_eq", &["kfabric.h"]),
    ("kfi_domain", "fi_domain", &["kfi_eq.h"]),
    ("kfi_endpoint", "fi_endpoint", &["kfi_domain.h"]),
    ("kfi_cm", "fi_cm", &["kfi_endpoint.h"]),
    ("kfi_rma", "fi_rma", &["kfi_endpoint.h"]),
    ("kfi_tagged", "fi_tagged", &["kfi_endpoint.h"]),
    ("kfi_atomic", "fi_atomic", &["kfi_endpoint.h", "kfi_rma.h"]),
];

/// Structs of system headers used in these headers.
const SYSTEM_STRUCTS: &[&str] = &["iovec", "pollfd"];

pub(crate) fn write() {
    for path in ["build.rs", "src/abi", "capi/headers", "include", "ctest/abi"] {
        println!("cargo:rerun-if-changed={path}");
    }
    let modules: BTreeMap<_, _> =
        HEADERS.iter().map(|header| (header.module, Module::parse(header.module))).collect();
    let calls = parse_calls();
    let mut texts = BTreeMap::new();
    for header in HEADERS {
        let path = format!("include/{}/{}.h", header.folder, header.module);
        let text = generate(header, &modules, &calls);
        write_if_changed(&path, &text);
        texts.insert(header.module, text);
    }
    let mut named = BTreeSet::new();
    for (name, module, includes) in KFI_HEADERS {
        let text = generate_kfi(name, module, includes, &texts[module], &mut named);
        write_if_changed(&format!("include/kfi/{name}.h"), &text);
    }
    write_abi_rows();
}

/// Writes a file unless it already has this text, so its dependents are not rebuilt and a read-only
/// checkout builds.
fn write_if_changed(path: &str, text: &str) {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return;
    }
    let folder = Path::new(path).parent().expect("the path has a folder");
    if let Err(error) = fs::create_dir_all(folder).and_then(|()| fs::write(path, text)) {
        println!("cargo:warning={path} is stale and cannot be written: {error}");
    }
}

/// Declarations and references of one module.
#[derive(Default)]
struct Module {
    /// Types with a tag in C, and the tag.
    tagged: BTreeMap<String, &'static str>,
    /// Its types without a body in C.
    opaque: Vec<String>,
    /// Types to be written by cbindgen.
    exported: Vec<String>,
    /// Every name in its types and signatures.
    mentioned: BTreeSet<String>,
    /// Its constants, as C macros, and its enums without a name.
    constants: String,
    /// Alternative names of enum values.
    value_aliases: Vec<ValueAlias>,
    /// For each function pointer, by struct and field: true if its first parameter is a plain
    /// `struct fid *`.
    slots: BTreeMap<(String, String), bool>,
    /// For each struct and field: the struct it points to.
    pointees: BTreeMap<(String, String), String>,
}

/// Returns the files with the declarations of a header.
fn sources(name: &str) -> Vec<String> {
    let parts: &[&str] = if name == "fabric" { &["fabric", "fabric_types"] } else { &[name] };
    parts.iter().map(|part| format!("src/abi/{part}.rs")).collect()
}

impl Module {
    fn parse(name: &str) -> Self {
        let mut module = Self::default();
        for path in sources(name) {
            let source = fs::read_to_string(path).unwrap();
            module.visit_file(&syn::parse_file(&source).unwrap());
        }
        module
    }
}

impl<'ast> Visit<'ast> for Module {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        let name = item.ident.to_string();
        self.tagged.insert(name.clone(), "struct");
        for field in &item.fields {
            let Some(ident) = &field.ident else { continue };
            let key = (name.clone(), ident.to_string());
            if let Some(takes_fid) = first_parameter_is_fid(&field.ty) {
                self.slots.insert(key, takes_fid);
            } else if let Some(target) = pointee(&field.ty) {
                self.pointees.insert(key, target);
            }
        }
        let opaque = item.fields.iter().any(|f| f.ident.as_ref().is_some_and(|i| i == "_opaque"));
        if opaque {
            self.opaque.push(name)
        } else {
            self.exported.push(name)
        }
        visit::visit_item_struct(self, item);
    }
    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        self.tagged.insert(item.ident.to_string(), "union");
        self.exported.push(item.ident.to_string());
        visit::visit_item_union(self, item);
    }
    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.tagged.insert(item.ident.to_string(), "enum");
        self.exported.push(item.ident.to_string());
    }
    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.exported.push(item.ident.to_string());
        visit::visit_item_type(self, item);
    }
    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        let ty = match &*item.ty {
            syn::Type::Reference(_) => "string".to_owned(),
            ty => path_type(ty).expect("the type of a constant is a name").0,
        };
        let value = c_constant(&item.ident, &ty, &item.expr);
        if self.tagged.get(&ty) == Some(&"enum") {
            let name = item.ident.to_string();
            self.value_aliases.push(ValueAlias { of: ty, value, name });
            return;
        }
        if let Some(text) = doc(&item.attrs) {
            writeln!(self.constants, "/**{text} */").unwrap();
        }
        writeln!(self.constants, "#define {} {value}", item.ident).unwrap();
    }
    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        if item.mac.path.is_ident("unnamed_enum") {
            let list = item.mac.parse_body::<UnnamedEnum>();
            self.constants += &list.expect("the list of an enum's values").to_string();
        }
    }
    fn visit_path_segment(&mut self, segment: &'ast syn::PathSegment) {
        self.mentioned.insert(segment.ident.to_string());
        visit::visit_path_segment(self, segment);
    }
}

/// Another name of an enum's value: in C a value of the enum, in Rust a constant of it.
struct ValueAlias {
    of: String,
    value: String,
    name: String,
}

/// The argument of `unnamed_enum!`: an enum as in Rust, without a name.
struct UnnamedEnum {
    doc: Option<String>,
    values: Vec<(Option<String>, syn::Ident, syn::Expr)>,
}

impl Parse for UnnamedEnum {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let doc = doc(&input.call(syn::Attribute::parse_outer)?);
        input.parse::<Token![enum]>()?;
        let list;
        braced!(list in input);
        let mut values = Vec::new();
        while !list.is_empty() {
            let attributes = list.call(syn::Attribute::parse_outer)?;
            let name = list.parse()?;
            list.parse::<Token![=]>()?;
            values.push((self::doc(&attributes), name, list.parse()?));
            list.parse::<Option<Token![,]>>()?;
        }
        Ok(Self { doc, values })
    }
}

impl fmt::Display for UnnamedEnum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(text) = &self.doc {
            writeln!(f, "/**{text} */")?;
        }
        writeln!(f, "enum {{")?;
        for (doc, name, value) in &self.values {
            if let Some(text) = doc {
                writeln!(f, "        /**{text} */")?;
            }
            let value = c_constant(name, "c_int", value);
            writeln!(f, "        {name} = {value},")?;
        }
        writeln!(f, "}};")
    }
}

/// The last name of a path type, with its generic argument if it has one.
fn path_type(ty: &syn::Type) -> Option<(String, Option<&syn::Type>)> {
    let syn::Type::Path(path) = ty else { return None };
    let last = path.path.segments.last()?;
    let argument = match &last.arguments {
        syn::PathArguments::AngleBracketed(list) => match list.args.first() {
            Some(syn::GenericArgument::Type(ty)) => Some(ty),
            _ => None,
        },
        _ => None,
    };
    Some((last.ident.to_string(), argument))
}

/// Returns `Some` for `Option<fn(..)>`: true if the first parameter is `*mut fid`.
fn first_parameter_is_fid(ty: &syn::Type) -> Option<bool> {
    let (_, Some(syn::Type::BareFn(function))) = path_type(ty)? else { return None };
    let is_fid = function.inputs.first().is_some_and(|first| {
        path_type(&first.ty).is_some_and(|(name, _)| name == "fid_t")
            || pointee(&first.ty).is_some_and(|name| name == "fid")
    });
    Some(is_fid)
}

/// `T` of `*mut T` and `*const T`.
fn pointee(ty: &syn::Type) -> Option<String> {
    let syn::Type::Ptr(pointer) = ty else { return None };
    Some(path_type(&pointer.elem)?.0)
}

/// The text of a documentation comment, lines joined.
fn doc(attributes: &[syn::Attribute]) -> Option<String> {
    let lines: Vec<String> = attributes
        .iter()
        .filter_map(|attribute| match &attribute.meta {
            syn::Meta::NameValue(meta) if meta.path.is_ident("doc") => Some(&meta.value),
            _ => None,
        })
        .filter_map(|value| match value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        })
        .collect();
    (!lines.is_empty()).then(|| lines.join("\n *"))
}

/// Returns a constant in C: of the same type, and usable in `#if` if it is a number.
fn c_constant(name: &syn::Ident, ty: &str, value: &syn::Expr) -> String {
    let suffix = match ty {
        "u64" => "ULL",
        "u32" => "U",
        _ => "",
    };
    fn number(expression: &syn::Expr, suffix: &str) -> Option<String> {
        match expression {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(int), .. }) => {
                Some(format!("{}{suffix}", int.token()))
            }
            _ => None,
        }
    }
    match value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::CStr(text), .. }) => {
            format!("\"{}\"", text.value().to_str().unwrap())
        }
        syn::Expr::Unary(syn::ExprUnary { op: syn::UnOp::Neg(_), expr, .. }) => {
            format!("(-{})", number(expr, suffix).expect("a negative number"))
        }
        syn::Expr::Binary(syn::ExprBinary { left, op: syn::BinOp::Shl(_), right, .. }) => {
            let (left, right) = (number(left, suffix), number(right, ""));
            format!("({} << {})", left.expect("a number"), right.expect("a number"))
        }
        // u64::MAX, or a value of an enum.
        syn::Expr::Path(path) => match (ty, path.path.segments.last()) {
            ("u64", Some(name)) if name.ident == "MAX" => "((uint64_t) -1)".into(),
            ("usize", Some(name)) if name.ident == "MAX" => "((size_t) -1)".into(),
            (_, name) => name.expect("a path has a last name").ident.to_string(),
        },
        expression => number(expression, suffix)
            .unwrap_or_else(|| panic!("{name}: a constant of a form build.rs does not know")),
    }
}

fn generate(header: &PublicHeader, modules: &BTreeMap<&str, Module>, calls: &[Calls]) -> String {
    let name = header.module;
    let own = &modules[name];
    // The guards are the original's, so that a program that meets both sets of
    // headers gets one of them.
    let guard = match name {
        "fi_ext_efa" => "_FI_EXT_EFA_H_".to_owned(),
        _ => format!("{}_H", name.to_uppercase()),
    };
    let includes: String = header.includes.iter().map(|i| format!("#include <{i}>\n")).collect();
    let forward: String = modules
        .iter()
        .flat_map(|(module, other)| other.tagged.iter().map(move |(ty, tag)| (module, ty, tag)))
        .filter(|(_, ty, _)| !ty.contains("__"))
        .filter(|(module, ty, tag)| {
            **tag != "enum" && (**module == name || own.mentioned.contains(*ty))
        })
        .map(|(_, ty, tag)| format!("{tag} {ty};\n"))
        .collect();
    let calls: String = calls
        .iter()
        .filter(|group| group.header == name)
        .flat_map(|group| &group.calls)
        .map(|call| c_inline(call, modules))
        .collect();

    let body = [
        fragment(name, "macros"),
        own.constants.clone(),
        forward,
        declarations(name, modules),
        calls,
        fragment(name, "inline"),
    ];
    enclose(&guard, includes, &body)
}

/// Returns the text of a header: its includes and its parts, with an include guard.
fn enclose(guard: &str, includes: String, body: &[String]) -> String {
    let mut parts = vec![
        "/* Generated by build.rs from src/abi and capi/headers; do not edit. */".into(),
        format!("#ifndef {guard}\n#define {guard}"),
        includes,
        "#ifdef __cplusplus\nextern \"C\" {\n#endif".into(),
    ];
    parts.extend_from_slice(body);
    parts.push("#ifdef __cplusplus\n}\n#endif".into());
    parts.push(format!("#endif /* {guard} */"));
    parts
        .iter()
        .map(|part| part.trim_matches('\n'))
        .filter(|part| !part.is_empty())
        .fold(String::new(), |text, part| text + part + "\n\n")
        .trim_end()
        .to_owned()
        + "\n"
}

/// Returns a header of kfabric: macros for the names in the text of libfabric's header, except the
/// `named` ones and ones with a separate meaning.
fn generate_kfi(
    name: &str,
    module: &str,
    includes: &[&str],
    text: &str,
    named: &mut BTreeSet<String>,
) -> String {
    let own = fragment(name, "inline");
    let has_own: BTreeSet<_> = identifiers(&own).collect();
    let guard = format!("{}_H", name.to_uppercase());
    let includes: String = includes.iter().map(|i| format!("#include <{i}>\n")).collect();
    let mut names = String::new();
    for ident in identifiers(text) {
        let is_name = ident == "fid"
            || ["fi_", "fid_", "FI_"].iter().any(|start| ident.starts_with(start))
                && !ident.ends_with("_H");
        let theirs = if ident.starts_with('F') { format!("K{ident}") } else { format!("k{ident}") };
        if is_name && named.insert(theirs.clone()) && !has_own.contains(theirs.as_str()) {
            writeln!(names, "#define {theirs} {ident}").unwrap();
        }
    }
    enclose(&guard, format!("#include <rdma/{module}.h>\n{includes}"), &[names, own])
}

/// Returns the words of a C text outside of comments.
fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    let code = text
        .split("/*")
        .flat_map(|part| part.split_once("*/").map_or(part, |(_, code)| code).lines());
    code.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
        .filter(|word| !word.is_empty())
}

/// The types and prototypes of a module, by cbindgen.
fn declarations(name: &str, modules: &BTreeMap<&str, Module>) -> String {
    let own = &modules[name];
    let mut config = cbindgen::Config {
        language: cbindgen::Language::C,
        style: cbindgen::Style::Tag,
        no_includes: true,
        usize_is_size_t: true,
        documentation: true,
        tab_width: 8,
        ..Default::default()
    };
    config.enumeration.prefix_with_name = false;
    config.export.item_types = vec![
        cbindgen::ItemType::Enums,
        cbindgen::ItemType::Structs,
        cbindgen::ItemType::Unions,
        cbindgen::ItemType::Typedefs,
        cbindgen::ItemType::Functions,
    ];
    config.export.include = own.exported.clone();
    config.export.exclude = own.opaque.clone();
    config.export.exclude.push("c_enum".into());

    // cbindgen sees one module at a time, so the tags of the others' types (and of those excluded
    // from its output) come from here.
    for (module, other) in modules {
        for (ty, tag) in &other.tagged {
            if *module != name || own.opaque.contains(ty) {
                config.export.rename.insert(ty.clone(), format!("{tag} {ty}"));
            }
            if *tag == "enum" {
                config.export.rename.insert(format!("c_enum_{ty}"), format!("enum {ty}"));
                config.export.exclude.push(format!("c_enum_{ty}"));
            }
        }
    }
    for ty in SYSTEM_STRUCTS {
        config.export.rename.insert((*ty).into(), format!("struct {ty}"));
    }

    let mut text = Vec::new();
    let builder = cbindgen::Builder::new().with_config(config).with_src("src/abi/enums.rs");
    sources(name)
        .iter()
        .fold(builder, cbindgen::Builder::with_src)
        .generate()
        .unwrap_or_else(|error| panic!("cbindgen on the files of {name}: {error}"))
        .write(&mut text);
    let text = String::from_utf8(text).expect("cbindgen writes UTF-8");
    let text = inline_unions(text, own);
    let text = name_union_aliases(text, own);
    let text = add_value_aliases(text, own);
    // Rust's empty array at the end of a struct is C's flexible one.
    let text = text.replace("[0];", "[];");
    // The compiler checks the arguments of what takes a printf format.
    text.replace(
        "const char *fmt,\n                   ...);",
        "const char *fmt,\n                   ...) FI_FORMAT_PRINTF(6, 7);",
    )
}

/// Moves the body of each union named `<struct>__<field>` into the one field of this type: C
/// declares it there, Rust has to name it.
fn inline_unions(mut text: String, module: &Module) -> String {
    for (name, tag) in module.tagged.iter().filter(|(name, _)| name.contains("__")) {
        let open = format!("\n{tag} {name} {{\n");
        let start = text.find(&open).unwrap_or_else(|| panic!("{name} is declared"));
        let length = text[start..].find("\n};\n").expect("a declaration ends");
        let body = text[start + open.len()..start + length].replace('\n', "\n        ");
        text.replace_range(start..start + length + "\n};\n".len(), "");
        let field = name.split("__").nth(1).expect("the name has a field");
        text = text.replace(
            &format!("        {tag} {name} {field};"),
            &format!("        {tag} {{\n        {body}\n        }} {field};"),
        );
    }
    text
}

/// Wraps the fields of [`UNION_ALIASES`] in an unnamed union with the other name.
fn name_union_aliases(mut text: String, module: &Module) -> String {
    for (ty, field, alias) in UNION_ALIASES {
        if !module.tagged.contains_key(*ty) {
            continue;
        }
        let start = text.find(&format!("\nstruct {ty} {{\n")).expect("the struct is declared");
        let field_end =
            start + text[start..].find(&format!("{field};\n")).expect("the field is declared");
        let line = text[..field_end].rfind('\n').expect("a line starts") + 1;
        let end = field_end + field.len() + ";\n".len();
        let first = text[line..end].trim().to_owned();
        text.replace_range(
            line..end,
            &format!(
                "        union {{\n                {first}\n                {alias};\n        }};\n"
            ),
        );
    }
    text
}

/// Writes each other name of an enum's value behind the value.
fn add_value_aliases(mut text: String, module: &Module) -> String {
    for ValueAlias { of, value, name } in &module.value_aliases {
        let start = text.find(&format!("\nenum {of} {{\n")).expect("the enum is declared");
        let at = text[start..].find(&format!(" {value} = ")).expect("the value is declared");
        let line = start + at;
        let end = line + text[line..].find('\n').expect("the line ends") + 1;
        text.insert_str(end, &format!("        {name} = {value},\n"));
    }
    text
}

/// Returns the C text `capi/headers/<name>.<part>.h`, or nothing if there is none.
fn fragment(name: &str, part: &str) -> String {
    fs::read_to_string(format!("capi/headers/{name}.{part}.h")).unwrap_or_default()
}

/// The calls of one header, from the list in `src/abi/calls.rs`.
struct Calls {
    header: String,
    calls: Vec<OpsCall>,
}

/// Call consisting of a jump through an ops table.
struct OpsCall {
    name: String,
    parameters: Vec<(String, syn::Type)>,
    result: Option<syn::Type>,
    /// Struct of the table, and the path from the object to it.
    object: String,
    table: Vec<String>,
    slot: String,
    guarded: bool,
}

impl Parse for Calls {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let header = input.parse::<syn::Ident>()?.to_string();
        let rows;
        braced!(rows in input);
        let mut calls = Vec::new();
        while !rows.is_empty() {
            calls.push(rows.parse()?);
        }
        Ok(Self { header, calls })
    }
}

impl Parse for OpsCall {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let name = input.parse::<syn::Ident>()?.to_string();
        let list;
        parenthesized!(list in input);
        let mut parameters = Vec::new();
        while !list.is_empty() {
            let parameter = list.parse::<syn::Ident>()?.to_string();
            list.parse::<Token![:]>()?;
            parameters.push((parameter, list.parse()?));
            list.parse::<Option<Token![,]>>()?;
        }
        let result = match input.parse::<Option<Token![->]>>()? {
            Some(_) => Some(input.parse()?),
            None => None,
        };
        input.parse::<Token![=>]>()?;
        let object = input.parse::<syn::Ident>()?.to_string();
        let mut table = Vec::new();
        while input.parse::<Option<Token![.]>>()?.is_some() {
            table.push(input.parse::<syn::Ident>()?.to_string());
        }
        input.parse::<Token![,]>()?;
        let slot = input.parse::<syn::Ident>()?.to_string();
        let guarded = match input.parse::<Option<Token![,]>>()? {
            Some(_) => input.parse::<syn::Ident>()? == "guarded",
            None => false,
        };
        input.parse::<Token![;]>()?;
        Ok(Self { name, parameters, result, object, table, slot, guarded })
    }
}

/// Reads the list out of the macro it is the argument of.
fn parse_calls() -> Vec<Calls> {
    let source = fs::read_to_string("src/abi/calls.rs").unwrap();
    let file = syn::parse_file(&source).unwrap();
    let definition = file
        .items
        .iter()
        .find_map(|item| match item {
            syn::Item::Macro(item) if item.ident.as_ref().is_some_and(|i| i == "calls") => {
                Some(item.mac.tokens.clone())
            }
            _ => None,
        })
        .expect("src/abi/calls.rs defines calls!");
    let parser = |input: ParseStream<'_>| -> syn::Result<Vec<Calls>> {
        let (arguments, body, list);
        parenthesized!(arguments in input);
        arguments.parse::<proc_macro2::TokenStream>()?;
        input.parse::<Token![=>]>()?;
        braced!(body in input);
        input.parse::<Option<Token![;]>>()?;
        body.parse::<Token![$]>()?;
        body.parse::<syn::Ident>()?;
        body.parse::<Token![!]>()?;
        braced!(list in body);
        let mut groups = Vec::new();
        while !list.is_empty() {
            groups.push(list.parse()?);
        }
        Ok(groups)
    };
    parser.parse2(definition).expect("the list in src/abi/calls.rs")
}

/// The call as a C inline function.
fn c_inline(call: &OpsCall, modules: &BTreeMap<&str, Module>) -> String {
    let (first, first_type) = call.parameters.first().expect("a call has an object");
    let owned = pointee(first_type).is_some_and(|ty| ty == call.object);
    let object =
        if owned { first.clone() } else { format!("((struct {} *) {first})", call.object) };
    let table = format!("{object}->{}", call.table.join("."));

    // The type of the table, for the slot's first parameter and the guard.
    let mut ty = call.object.clone();
    for field in &call.table {
        let key = (ty.clone(), field.clone());
        ty = match modules.values().find_map(|module| module.pointees.get(&key)) {
            Some(target) => target.clone(),
            None if field == "fid" => "fid".into(),
            None => panic!("{}: {ty} has no table {field}", call.name),
        };
    }
    let key = (ty.clone(), call.slot.clone());
    let takes_fid = modules
        .values()
        .find_map(|module| module.slots.get(&key))
        .unwrap_or_else(|| panic!("{}: {ty} has no slot {}", call.name, call.slot));
    let receiver = if *takes_fid && owned && call.object != "fid" {
        format!("&{first}->fid")
    } else {
        first.clone()
    };

    let arguments: Vec<String> =
        [receiver].into_iter().chain(call.parameters[1..].iter().map(|(n, _)| n.clone())).collect();
    let parameters: Vec<String> =
        call.parameters.iter().map(|(name, ty)| c_declare(ty, name)).collect();
    let result = call.result.as_ref().map_or("void ".to_owned(), |ty| c_declare(ty, ""));
    let mut text = format!("\nstatic inline {}\n", result.trim_end());
    text += &wrap(&format!("{}(", call.name), &parameters, ")");
    text += "\n{\n";
    if call.guarded {
        writeln!(text, "\tif (!FI_CHECK_OP({table}, struct {ty}, {}))", call.slot).unwrap();
        text += "\t\treturn -FI_ENOSYS;\n";
    }
    let return_ = if call.result.is_some() { "return " } else { "" };
    text += &wrap(&format!("\t{return_}{table}->{}(", call.slot), &arguments, ");");
    text + "\n}\n"
}

/// A list in lines of at most 80 columns.
fn wrap(open: &str, items: &[String], close: &str) -> String {
    let indent = if open.starts_with('\t') { "\t\t" } else { "\t" };
    let width = |line: &str| line.chars().map(|c| if c == '\t' { 8 } else { 1 }).sum::<usize>();
    let (mut text, mut line) = (String::new(), open.to_owned());
    for (index, item) in items.iter().enumerate() {
        let item = format!("{item}{}", if index + 1 < items.len() { "," } else { close });
        if width(&line) + 1 + item.len() > 80 {
            text += line.trim_end_matches(' ');
            text += "\n";
            line = indent.to_owned();
        } else if !line.ends_with(['(', '\t']) {
            line += " ";
        }
        line += &item;
    }
    text + &line
}

/// `name` declared with a Rust type, in C.
fn c_declare(ty: &syn::Type, name: &str) -> String {
    match ty {
        syn::Type::Ptr(pointer) => {
            let inner = c_declare(&pointer.elem, &format!("*{name}"));
            if pointer.const_token.is_some() { format!("const {inner}") } else { inner }
        }
        _ => {
            let (base, argument) = path_type(ty).expect("a parameter's type is a name");
            let base = match (base.as_str(), argument) {
                ("c_enum", Some(ty)) => format!("enum {}", path_type(ty).expect("a name").0),
                ("c_void", _) => "void".into(),
                ("c_char", _) => "char".into(),
                ("c_int", _) => "int".into(),
                ("usize", _) => "size_t".into(),
                ("u32" | "u64", _) => format!("uint{}_t", &base[1..]),
                ("ssize_t" | "fi_addr_t" | "fid_t", _) => base,
                _ => format!("struct {base}"),
            };
            format!("{base} {name}")
        }
    }
}

/// Writes the file included by `tests/abi_rust.rs`: every row of the facts in `ctest/abi` with the
/// values of the Rust mirror.
fn write_abi_rows() {
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    // Layouts of another data model than that of the tables: ctest/processors/run.
    println!("cargo:rerun-if-env-changed=OFI_ABI_TABLES");
    let folder = env::var("OFI_ABI_TABLES").unwrap_or_else(|_| "ctest/abi".to_owned());
    println!("cargo:rerun-if-changed={folder}");
    let table = |name: &str| fs::read_to_string(format!("{folder}/{name}")).unwrap_or_default();
    let rows = |text: &str| -> Vec<Vec<String>> {
        text.lines().skip(1).map(|row| row.split('\t').map(str::to_owned).collect()).collect()
    };
    let mut text = String::from("pub fn layout() -> Vec<Layout> {\n    vec![\n");
    for row in rows(&table("abi_layout.tsv")) {
        let [ty, field, offset, size, align, ..] = &row[..] else { panic!("a short row: {row:?}") };
        if field == "(total)" {
            let name = ty;
            let actual = format!("size_of::<abi::{ty}>(), align_of::<abi::{ty}>()");
            writeln!(text, "total({name:?}, {size}, {align}, {actual}),").unwrap();
        } else {
            // The other name of an unnamed union is one field in Rust.
            let alias = UNION_ALIASES.iter().find(|(struct_, _, declaration)| {
                let name = declaration.rsplit([' ', '*']).next();
                struct_ == ty && name == Some(field.as_str())
            });
            let rust = alias.map_or(field.as_str(), |(_, first, _)| first);
            let rust = if rust == "type" { "r#type" } else { rust };
            let name = format!("{ty}.{field}");
            let is_alias = alias.is_some();
            writeln!(text, "field!({name:?}, {offset}, {size}, {is_alias}, {ty}, {rust}),")
                .unwrap();
        }
    }
    text += "    ]\n}\n\npub fn constants() -> Vec<Constant> {\n    vec![\n";
    for row in rows(&table("abi_constants.tsv")) {
        let [name, value, _, group, ..] = &row[..] else { panic!("a short row: {row:?}") };
        // An alias of an enum's value is a constant of the enum's type in Rust.
        let line = match group.as_str() {
            "macro-nonint" => format!("Constant::OnlyInC({name:?}),"),
            "string-macro" => format!("Constant::Text({name:?}, {value}, abi::{name}),"),
            "enum (anon)" | "macro" => format!("number!({name:?}, {value}, abi::{name}),"),
            _ if name == "FI_BUS_UNKNOWN" => format!("number!({name:?}, {value}, abi::{name}),"),
            enum_ => {
                let ty = enum_.strip_prefix("enum ").expect("the group is an enum");
                format!("number!({name:?}, {value}, abi::{ty}::{name}),")
            }
        };
        writeln!(text, "{line}").unwrap();
    }
    text += "    ]\n}\n";
    fs::write(Path::new(&out).join("abi_rows.rs"), text).expect("OUT_DIR is writable");
}

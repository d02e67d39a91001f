//! Comparison of the structures and constants here with the headers of rdma-core, if these are
//! installed.
use super::types::{constant_assertions, layout_assertions};
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

/// Compiles these assertions after the headers, and returns the C compiler's output.
fn compile(assertions: &[String]) -> std::io::Result<Output> {
    let mut text = "#include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n".to_owned();
    for assertion in assertions {
        text += &format!("_Static_assert({assertion}, \"not so: {assertion}\");\n");
    }
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut compiler = Command::new(compiler)
        .args(["-std=gnu11", "-w", "-fsyntax-only", "-x", "c", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    // A compiler that does not take it says why.
    let _ = compiler.stdin.take().map(|mut stdin| stdin.write_all(text.as_bytes()));
    compiler.wait_with_output()
}

/// Returns the failed assertions.
fn find_wrong(assertions: &[String]) -> Vec<String> {
    let output = compile(assertions).unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let found: Vec<String> = text.lines().filter(|l| l.contains("error")).map(Into::into).collect();
    assert_eq!(output.status.success(), found.is_empty(), "{text}");
    found
}

#[test]
fn structures_and_constants_are_those_of_the_headers() {
    if !compile(&[]).is_ok_and(|output| output.status.success()) {
        ofi_provider::testing::skip("no C compiler, or no libibverbs-dev and librdmacm-dev");
        return;
    }
    let assertions = [layout_assertions(), constant_assertions()].concat();
    assert!(assertions.len() > 400, "{} assertions", assertions.len());
    let found = find_wrong(&assertions);
    assert!(found.is_empty(), "{}", found.join("\n"));
    // A field that moves, one of another size and a constant of another value are noticed.
    for (right, other) in [
        ("offsetof(struct ibv_wc, qp_num) == 28", "offsetof(struct ibv_wc, qp_num) == 32"),
        ("sizeof(((struct ibv_wc *)0)->sl) == 1", "sizeof(((struct ibv_wc *)0)->sl) == 2"),
        ("IBV_QPS_ERR == 6", "IBV_QPS_ERR == 5"),
    ] {
        assert!(assertions.iter().any(|assertion| assertion == right), "{right} is an assertion");
        assert_eq!(find_wrong(&[right.into(), other.into()]).len(), 1, "{other}");
    }
}

#[test]
fn call_without_the_libraries_fails_with_enosys() {
    use super::Absent;
    for code in [libc::EINVAL, libc::ENOENT] {
        // SAFETY: errno is this thread's own.
        unsafe { *libc::__errno_location() = code };
        assert_eq!(<i32 as Absent>::absent(), libc::ENOSYS);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOSYS));
        assert!(<*mut u8 as Absent>::absent().is_null());
        assert!(<*const u8 as Absent>::absent().is_null());
    }
}

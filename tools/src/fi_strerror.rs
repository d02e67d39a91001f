//! Shows the text of an error code (fi_strerror(1)).
use std::env;
use std::ffi::{CStr, c_char, c_int};
use std::process::ExitCode;

unsafe extern "C" {
    fn fi_strerror(code: c_int) -> *const c_char;
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let own = args.first().map_or("fi_strerror", String::as_str);
    let [_, arg] = &args[..] else { return usage(own, None) };
    if arg == "-h" || arg == "--help" {
        return usage(own, None);
    }
    let code = match parse(arg) {
        Some(Ok(code)) => code,
        Some(Err(())) => return usage(own, Some(format!("'{arg}' is out of range"))),
        None => return usage(own, Some(format!("unable to parse '{arg}'"))),
    };
    // SAFETY: any code has a text, which is a C string.
    let text = unsafe { CStr::from_ptr(fi_strerror(code)) };
    println!("{}", text.to_string_lossy());
    ExitCode::SUCCESS
}

fn usage(own: &str, error: Option<String>) -> ExitCode {
    if let Some(error) = error {
        eprintln!("ERROR: {error}\n");
    }
    println!("Usage: {own} FI_ERROR_CODE\n");
    println!("Displays the error string for the given numeric FI_ERROR_CODE.");
    println!("FI_ERROR_CODE may be a hexadecimal, octal, or decimal constant.");
    println!("For convenience, the absolute value of FI_ERROR_CODE will be used.");
    ExitCode::FAILURE
}

/// A number in C's notation; an error if it is one, but no error code.
fn parse(arg: &str) -> Option<Result<c_int, ()>> {
    let digits = arg.trim_start();
    let digits = digits.strip_prefix(['-', '+']).unwrap_or(digits);
    let (base, digits) = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        Some(digits) => (16, digits),
        None if digits.starts_with('0') => (8, digits),
        None => (10, digits),
    };
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(base)) {
        return None;
    }
    // Digits that are a number of no size we know are too large a number.
    Some(c_int::from_str_radix(digits, base).map_err(|_| ()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_read_in_the_notation_of_c() {
        for (arg, code) in [("61", 61), ("-61", 61), ("0x10", 16), ("010", 8), ("0", 0), ("+5", 5)]
        {
            assert_eq!(parse(arg), Some(Ok(code)), "{arg}");
        }
        assert_eq!(parse("99999999999"), Some(Err(())));
        for arg in ["", "-", "0x", "12x", "abc", "--5"] {
            assert_eq!(parse(arg), None, "{arg}");
        }
    }
}

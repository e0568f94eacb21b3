//! What the compiler's diagnostics mean, where they do not say so.

use std::path::Path;

use super::Source;
use crate::base::error::{Code, Error};

/// How the compiler begins to say that it has no way to compile an operation.
const UNSUPPORTED: &str = "failed to legalize operation 'torch.operator'";

/// How it says that what it made does not fit a thread's stack or registers.
const TOO_LARGE: [&str; 2] = ["exceeded stack allocation limit", "with large vector sizes"];

/// The error of compiling `source`, saying first what it comes to.
pub(super) fn explain(error: Error, source: &Source<'_>) -> Error {
    if error.code() != Code::InvalidArgument {
        return error;
    }
    if let Some(name) = unsupported(error.message()) {
        let text = format!(
            "IREE does not compile the ONNX operator {name} as the model uses it: a newer opset \
             (`iree-import-onnx --opset-version 17`), static shapes and folded constants may do \
             without it"
        );
        return error.context(text);
    }
    if TOO_LARGE.iter().any(|what| error.message().contains(what)) {
        return error.context(
            "IREE made code of a fusion that takes too much stack: `data_tiling(false)`, static \
             shapes or another optimisation level may do without it",
        );
    }
    let path = std::str::from_utf8(source.bytes()).unwrap_or_default();
    if !path.contains('\n') && Path::new(path).is_file() {
        return error
            .context(format!("`{path}` is the name of a file: give it as `Path::new(...)`"));
    }
    error
}

/// The name of the ONNX operator that is not supported, if that is what `diagnostics` say.
fn unsupported(diagnostics: &str) -> Option<&str> {
    let (_, rest) = diagnostics.split_once(UNSUPPORTED)?;
    let (_, rest) = rest.split_once("\"onnx.")?;
    rest.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(message: &str) -> String {
        explain(Error::invalid(message), &"func.func @f()".into()).message().to_owned()
    }

    #[test]
    fn an_operator_that_is_not_supported_is_named() {
        for operation in [
            "%358 = \"torch.operator\"(%357) <{name = \"onnx.If\"}> ({ ... })",
            "%4 = torch.operator \"onnx.If\"(%3) : (!torch.vtensor<[1],i1>)",
        ] {
            let message = format!(
                "input.mlir:91:13: error: {UNSUPPORTED} that was explicitly marked illegal: \
                 {operation}"
            );
            let text = explained(&message);
            assert!(text.starts_with("IREE does not compile the ONNX operator If "), "{text}");
            assert!(text.ends_with(&message), "{text}");
        }
    }

    #[test]
    fn code_that_takes_too_much_says_what_may_help() {
        for what in TOO_LARGE {
            let text = explained(&format!("input.mlir:1:1: error: 'func.func' op {what} of 32768"));
            assert!(text.contains("`data_tiling(false)`"), "{text}");
        }
    }

    #[test]
    fn other_diagnostics_stand_as_they_are() {
        let message = "input.mlir:1:1: error: 'func.return' op has 1 operands";
        assert_eq!(explained(message), message);
    }
}

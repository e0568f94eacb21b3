//! What modules and tensors of folders are called.

/// The name of a module or tensor in a model of text alone: where there are images too, the text model's are
/// in a module of their own.
pub(crate) fn of_text_model(name: &str) -> String {
    if let Some(name) = name.strip_prefix("language_model.") {
        return name.to_owned();
    }
    match name.strip_prefix("model.language_model.") {
        Some(rest) => format!("model.{rest}"),
        None => name.to_owned(),
    }
}

//! What modules and tensors of folders are called.

use std::borrow::Cow;

/// The module that an encoder is in, as "bert.", by one of its tensors: nothing where it was saved without a head. `None` of
/// what is no encoder of a family of its own.
pub(crate) fn module_of_encoder<'a>(mut names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let embeddings = ["embeddings.word_embeddings.weight", "embeddings.tok_embeddings.weight"];
    names.find_map(|name| embeddings.iter().find_map(|it| name.strip_suffix(it)))
}

/// The name of a tensor in an encoder, as in one that was saved without a head: what is around it has it in a `module` of
/// its own, and those that came from TensorFlow call the weights of layer norms otherwise.
pub(crate) fn of_encoder(name: &str, module: &str) -> String {
    let name = name.strip_prefix(module).unwrap_or(name);
    let renamed = [(".LayerNorm.gamma", "weight"), (".LayerNorm.beta", "bias")];
    let renamed = renamed.iter().find_map(|(old, new)| {
        let module = name.strip_suffix(old)?;
        Some(Cow::Owned(format!("{module}.LayerNorm.{new}")))
    });
    renamed.unwrap_or(Cow::Borrowed(name)).into_owned()
}

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

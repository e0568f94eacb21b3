//! Tokens with a task: which ids a file names, and which it means.

use super::{TokenType, Vocabulary};

/// Tokens whose ids the file names, or else the algorithm.
#[derive(Debug, Clone, Copy)]
pub(super) enum Special {
    Bos,
    Eos,
    Unknown,
    Separator,
    Cls,
}

impl Special {
    pub const ALL: [Self; 5] = [Self::Bos, Self::Eos, Self::Unknown, Self::Separator, Self::Cls];

    /// Its key below `tokenizer.ggml.`.
    pub fn key(self) -> &'static str {
        match self {
            Self::Bos => "bos_token_id",
            Self::Eos => "eos_token_id",
            Self::Unknown => "unknown_token_id",
            Self::Separator => "seperator_token_id",
            Self::Cls => "cls_token_id",
        }
    }
}

impl Vocabulary {
    /// The texts of the special tokens that chat templates name.
    pub(crate) fn special_texts(&self) -> Vec<(String, String)> {
        let named = [
            ("bos_token", self.id(Special::Bos)),
            ("eos_token", self.id(Special::Eos)),
            ("unk_token", self.id(Special::Unknown)),
            ("sep_token", self.id(Special::Separator)),
            ("pad_token", self.padding),
            ("cls_token", self.id(Special::Cls)),
            ("mask_token", self.mask),
        ];
        let named = named.into_iter();
        named.filter_map(|(name, id)| Some((name.to_owned(), self.text(id?)?.to_owned()))).collect()
    }

    /// The id that a key names.
    pub(super) fn named(&self, which: Special) -> Option<u32> {
        match which {
            Special::Bos => self.bos,
            Special::Eos => self.eos,
            Special::Unknown => self.unknown,
            Special::Separator => self.separator,
            Special::Cls => self.cls.or(self.bos),
        }
    }

    /// The id that a key names, else the one that a file without the key means.
    pub(super) fn id(&self, which: Special) -> Option<u32> {
        let absent = match (self.model.as_str(), which) {
            ("llama", Special::Unknown) => Some(0),
            ("llama", Special::Bos) => Some(1),
            ("llama", Special::Eos) => Some(2),
            ("t5", Special::Eos) => Some(1),
            ("t5", Special::Unknown) => Some(2),
            ("bert", Special::Unknown) => Some(100),
            ("bert", Special::Cls) => Some(101),
            ("bert", Special::Separator) => Some(102),
            _ => None,
        };
        let typed = match which {
            Special::Unknown => self.types.iter().position(|it| *it == TokenType::Unknown),
            _ => None,
        };
        let typed = typed.and_then(|id| u32::try_from(id).ok());
        self.named(which).or(typed).or(absent.filter(|&id| self.text(id).is_some()))
    }
}

//! Tokens with a task: which ids a file names, which it means, and which end an answer.

use super::{TokenType, Vocabulary};

/// Texts of control tokens that end an answer, whatever else a file says of them.
const ENDS: [&str; 12] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
];

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
    /// The ids that end an answer: those that the keys name, and control tokens that are known to.
    pub fn end_ids(&self) -> Vec<u32> {
        let named = [self.id(Special::Eos), self.eot, self.eom].into_iter().flatten();
        let control = self.tokens.iter().zip(0..).filter(|&(text, id)| {
            self.token_type(id as usize) == TokenType::Control && ENDS.contains(&text.as_str())
        });
        let control = control.map(|(_, id)| id);
        let mut ids: Vec<u32> =
            named.chain(control).filter(|&id| self.text(id).is_some()).collect();
        // Where messages end with <|return|> and <|call|>, <|end|> ends a part of one.
        let has = |text: &str| ids.iter().any(|&id| self.text(id) == Some(text));
        if has("<|return|>") && has("<|call|>") {
            ids.retain(|&id| self.text(id) != Some("<|end|>"));
        }
        ids.sort_unstable();
        ids.dedup();
        ids
    }

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
        self.named(which).or(absent.filter(|&id| self.text(id).is_some()))
    }
}

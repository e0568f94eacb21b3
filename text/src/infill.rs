//! Filling in: what stands between two texts, as models of code have been trained to write it.

use crate::{Result, Tokenizer, tokens_in};

/// How a family marks what stands before a place, and what behind it.
#[derive(Debug)]
struct Marks {
    prefix: &'static str,
    suffix: &'static str,
    /// Behind which the answer begins; where there is none, it follows what stands before the place.
    middle: Option<&'static str>,
    /// Whether what stands behind comes first.
    suffix_first: bool,
}

impl Marks {
    const fn new(prefix: &'static str, suffix: &'static str, middle: &'static str) -> Self {
        Self { prefix, suffix, middle: Some(middle), suffix_first: false }
    }
}

/// Of which a tokenizer has all, or it has none.
const MARKS: [Marks; 6] = [
    // Qwen2.5-Coder, CodeGemma, Granite 4.
    Marks::new("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    // Granite 3, and StarCoder, whose marks these are.
    Marks::new("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    // DeepSeek-Coder, and V2 and V3 of DeepSeek.
    Marks::new("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    // GLM-4.5, as llama.cpp has it.
    Marks::new("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    // Seed-Coder.
    Marks {
        suffix_first: true,
        ..Marks::new("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>")
    },
    // Codestral.
    Marks { prefix: "[PREFIX]", suffix: "[SUFFIX]", middle: None, suffix_first: true },
];

/// What the name of a repository follows.
const REPOSITORY: [&str; 4] = ["<|repo_name|>", "<repo_name>", "<|reponame|>", "<reponame>"];
/// What the name of a file follows, whose text is in the lines behind it.
const FILE: [&str; 4] = ["<|file_sep|>", "<file_sep>", "<|filename|>", "<filename>"];
/// What ends a text besides the marks; `generation_config.json` often knows the end of a chat's turn alone.
const ENDS: [&str; 6] = [
    "<|fim_pad|>",
    "<fim_pad>",
    // CodeGemma's.
    "<|file_separator|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<｜end▁of▁sentence｜>",
];

/// A place in a text that is to be filled in, and what there is around it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Place<'a> {
    /// What stands before it.
    pub prefix: &'a str,
    /// What stands behind it.
    pub suffix: &'a str,
    /// The name of the file that it is in.
    pub name: Option<&'a str>,
    /// Names and texts of other files, or of parts of them, which may be of use: the most useful last.
    pub files: &'a [(String, String)],
}

/// How a model is asked to fill in: by tokens that mark what stands before the place and what behind it.
#[derive(Debug, Clone)]
pub struct Infill {
    tokenizer: Tokenizer,
    marks: &'static Marks,
    repository: Option<&'static str>,
    file: Option<&'static str>,
    /// What is a token of its own wherever it is written.
    written: Vec<&'static str>,
    ends: Vec<u32>,
}

impl Infill {
    /// By the marks that `tokenizer` has; `None` where it has none. That it has some does not say that the model was
    /// trained with them: Qwen2.5 has those of Qwen2.5-Coder.
    pub fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let has = |token: &&str| tokenizer.added(token).is_some();
        let marks = MARKS.iter().find(|it| {
            let Marks { prefix, suffix, middle, .. } = it;
            [Some(prefix), Some(suffix), middle.as_ref()].into_iter().flatten().all(has)
        })?;
        let (repository, file) = (REPOSITORY.into_iter().find(has), FILE.into_iter().find(has));
        let Marks { prefix, suffix, middle, .. } = *marks;
        let ends = [Some(prefix), Some(suffix), middle, repository, file];
        let ends = ends.into_iter().flatten().chain(ENDS);
        let ends = ends.filter_map(|it| Some((it, tokenizer.added(it)?)));
        let (written, ends) = ends.unzip();
        Some(Self { tokenizer: tokenizer.clone(), marks, repository, file, written, ends })
    }

    /// The tokens that end what is filled in, besides those that end any text of the model.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// The tokens of a prompt for `place`, and whether some were left out, so that a `context` of so many tokens has room for
    /// `answer` tokens, or for as many as half of it holds. Files have a third of it at most, whatever stands around the
    /// place, so that a prompt begins as the one before did; those that do not fit are left out, the first ones first. Then
    /// the beginning of the prefix is, and the end of the suffix, which keeps a quarter of what both have.
    ///
    /// Files and the name go before the marks, each behind the model's mark for files; where it has none, they are lines
    /// of the prefix, each file behind a comment with its name, as DeepSeek-Coder knows it. What is written as a mark in any
    /// of the texts is text.
    ///
    /// # Errors
    ///
    /// The tokenizer fails.
    pub fn tokens(
        &self,
        place: &Place<'_>,
        context: usize,
        answer: usize,
    ) -> Result<(Vec<u32>, bool)> {
        // The last token of an answer needs no room.
        let answer = answer.clamp(1, (context / 2).max(1)) - 1;
        let most = context.saturating_sub(answer);
        let Marks { prefix, suffix, middle, suffix_first } = self.marks;
        let mut tokens = self.beginning(prefix)?;
        let mut prefix = self.behind(prefix, place.prefix)?;
        let mut suffix = self.behind(suffix, place.suffix)?;
        let middle = middle.and_then(|it| self.tokenizer.added(it));

        let room = most.saturating_sub(tokens.len() + usize::from(middle.is_some()));
        let (files, mut cut) = self.files(place, (context / 3).min(room / 2))?;
        let room = room - files.len();
        if prefix.len() + suffix.len() > room {
            cut = true;
            let behind = suffix.len().min((room / 4).max(room.saturating_sub(prefix.len())));
            suffix.truncate(behind.max(1));
            let before = room.saturating_sub(suffix.len()).max(1);
            let left_out = prefix.len().saturating_sub(before);
            prefix.drain(1..=left_out);
        }

        if self.file.is_some() {
            tokens.extend(files);
        } else {
            prefix.splice(1..1, files);
        }
        let (first, second) = if *suffix_first { (suffix, prefix) } else { (prefix, suffix) };
        tokens.extend(first.into_iter().chain(second).chain(middle));
        Ok((tokens, cut))
    }

    /// What every text begins with, as what begins with the token `mark` does.
    fn beginning(&self, mark: &str) -> Result<Vec<u32>> {
        let mut tokens = self.tokenizer.encode(mark, true)?;
        let mark = self.tokenizer.added(mark);
        let at = tokens.iter().position(|&it| Some(it) == mark);
        tokens.truncate(at.unwrap_or_default());
        Ok(tokens)
    }

    /// The token `mark`, and those that `text` has behind it, in which nothing that is written is a mark or a special token.
    fn behind(&self, mark: &str, text: &str) -> Result<Vec<u32>> {
        // Cut within what is written as one, no piece has it.
        let first = |mark: &str| mark.chars().next().map_or(0, char::len_utf8);
        let of_mark = |mark: &&'static str| {
            let first = first(mark);
            text.match_indices(*mark).map(move |(at, _)| at + first)
        };
        // `<s>` is HTML, too.
        let special = tokens_in(text).filter(|it| self.tokenizer.special_token(it).is_some());
        let special = special.map(|it| it.as_ptr().addr() - text.as_ptr().addr() + first(it));
        let cuts = self.written.iter().flat_map(of_mark).chain(special);
        let mut cuts: Vec<_> = cuts.chain([text.len()]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        let (mut tokens, mut from) = (Vec::new(), 0);
        for to in cuts {
            let piece = self.tokenizer.encode(&format!("{mark}{}", &text[from..to]), false)?;
            // Every piece has the tokens that it has behind the mark, which stands there once.
            tokens.extend(&piece[usize::from(from > 0).min(piece.len())..]);
            from = to;
        }
        Ok(tokens)
    }

    /// The names and texts of files, and the name of the file that is filled in; at most `room` tokens, and whether there
    /// were more.
    fn files(&self, place: &Place<'_>, room: usize) -> Result<(Vec<u32>, bool)> {
        if place.files.is_empty() && place.name.is_none() {
            return Ok((Vec::new(), false));
        }
        let file = |name: &str, text: &str| match self.file {
            Some(mark) => self.behind(mark, &format!("{name}\n{text}")),
            None => {
                let tokens = self.behind(self.marks.prefix, &format!("#{name}\n{text}"))?;
                Ok(tokens.into_iter().skip(1).collect())
            }
        };
        let head = match (self.repository, self.file) {
            (Some(repository), Some(_)) => self.behind(repository, "project\n")?,
            _ => Vec::new(),
        };
        let own = match (place.name, self.file) {
            (None, None) => Vec::new(),
            (name, _) => file(name.unwrap_or("file"), "")?,
        };
        let Some(mut left) = room.checked_sub(head.len() + own.len()) else {
            return Ok((Vec::new(), true));
        };
        let (mut kept, mut fewer) = (Vec::new(), false);
        for (name, text) in place.files.iter().rev() {
            let end = if text.ends_with('\n') { "" } else { "\n" };
            let tokens = file(name, &format!("{text}{end}"))?;
            match left.checked_sub(tokens.len()) {
                Some(rest) => {
                    left = rest;
                    kept.push(tokens);
                }
                None => fewer = true,
            }
        }
        if kept.is_empty() && place.name.is_none() {
            return Ok((Vec::new(), fewer));
        }
        let files = kept.into_iter().rev().flatten();
        Ok((head.into_iter().chain(files).chain(own).collect(), fewer))
    }
}

//! A tokenizer as grammars need it: the bytes of its tokens.

use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use text::Tokenizer;

/// What makes parsers of grammars, of the tokens of `tokenizer`, of which a model has `vocab_size` and `eos` end an answer.
///
/// # Errors
///
/// The tokenizer is of a kind that is not known.
pub fn factory(
    tokenizer: &Tokenizer,
    vocab_size: usize,
    eos: &[u32],
) -> anyhow::Result<ParserFactory> {
    let eos: Vec<_> = eos.iter().copied().filter(|&id| (id as usize) < vocab_size).collect();
    let Some(&end) = eos.first() else { anyhow::bail!("no token of it ends an answer") };
    let json = serde_json::from_str(&tokenizer.to_json()?)?;
    let mut tokens = llguidance::token_bytes_from_tokenizer_json(&json)?;
    // Some models lack the last ones, as Gemma 3's smallest do that of images: those are never chosen.
    tokens.resize(vocab_size, Vec::new());
    let trie = TokTrie::from(&TokRxInfo::new(vocab_size as u32, end), &tokens);
    let (tokenizer, trie) = (tokenizer.clone(), trie.with_eos_tokens(&eos));
    let words: TokEnv = Arc::new(Words { tokenizer, trie });
    let mut factory = ParserFactory::new_simple(&words)?;
    factory.quiet();
    factory.limits_mut().verbose_errors = false;
    Ok(factory)
}

/// Tells in which tokens the model knows a text that it is forced to write.
struct Words {
    tokenizer: Tokenizer,
    trie: TokTrie,
}

impl Words {
    fn tokens(&self, text: &str) -> Vec<TokenId> {
        // Some tokenizers begin a text with a space, which has no place within one; not so behind a line.
        for before in ["", "\n"] {
            let Ok(tokens) = self.tokenizer.encode(&format!("{before}{text}"), false) else {
                break;
            };
            for start in 0..=tokens.len().min(2) {
                if self.trie.decode_raw(&tokens[start..]) == text.as_bytes() {
                    return tokens[start..].to_vec();
                }
            }
        }
        self.trie.greedy_tokenize(text.as_bytes())
    }
}

impl TokenizerEnv for Words {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| self.tokens(text))
    }
}

//! A call, while it comes, that is one of Python: arguments by their names, literals all of them.

use serde_json::Value;

use super::Part;
use super::parameters::escaped;

/// `KEY=VALUE, …)`: what stands behind a name and `(`, as an object of JSON.
#[derive(Debug)]
pub(super) struct PythonCall {
    /// What is open: the call itself, and brackets in it.
    open: Vec<Bracket>,
    /// The string that has begun.
    string: Option<Text>,
    /// The word that has begun: a key, a number, `True`.
    word: String,
    /// What comes before the next item of what is open.
    before: &'static str,
    /// Whether that has no key yet.
    key: bool,
    /// Arguments that have begun.
    begun: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bracket {
    Call,
    List,
    Dict,
}

/// In a string: its quote, and what has come of an escape.
#[derive(Debug)]
struct Text {
    quote: char,
    escape: Option<String>,
}

impl Default for PythonCall {
    fn default() -> Self {
        let (string, word) = (None, String::new());
        Self { open: vec![Bracket::Call], string, word, before: "{", key: true, begun: 0 }
    }
}

impl PythonCall {
    /// Whether all of it is there.
    pub fn is_whole(&self) -> bool {
        self.open.is_empty()
    }

    /// Takes what belongs to it from the front of `text`: so many bytes.
    pub fn push(&mut self, text: &str, parts: &mut Vec<Part>) -> usize {
        let (mut used, mut json) = (0, String::new());
        for c in text.chars() {
            used += c.len_utf8();
            match self.string.take() {
                Some(string) => self.string = string.take(c, &mut json),
                None => self.take(c, &mut json),
            }
            if self.is_whole() {
                break;
            }
        }
        if !json.is_empty() {
            parts.push(Part::Arguments(json));
        }
        used
    }

    fn take(&mut self, c: char, json: &mut String) {
        match c {
            '"' | '\'' => {
                self.begin_value(json);
                json.push('"');
                self.string = Some(Text { quote: c, escape: None });
            }
            '[' | '(' | '{' => {
                self.begin_value(json);
                json.push(if c == '{' { '{' } else { '[' });
                self.open.push(if c == '{' { Bracket::Dict } else { Bracket::List });
                (self.before, self.key) = ("", c == '{');
            }
            ']' | ')' | '}' => {
                self.end_value(json);
                match self.open.pop() {
                    Some(Bracket::List) => json.push(']'),
                    Some(Bracket::Call) if self.begun == 0 => json.push_str("{}"),
                    _ => json.push('}'),
                }
                // A comma before it says nothing.
                (self.before, self.key) = ("", false);
            }
            ',' => {
                self.end_value(json);
                (self.before, self.key) = (", ", self.open.last() != Some(&Bracket::List));
            }
            '=' | ':' => {
                if !self.word.is_empty() {
                    self.begin_item(json);
                    *json += &Value::from(std::mem::take(&mut self.word)).to_string();
                }
                json.push_str(": ");
                self.key = false;
            }
            c if c.is_whitespace() => {}
            c => self.word.push(c),
        }
    }

    fn begin_item(&mut self, json: &mut String) {
        *json += std::mem::take(&mut self.before);
        self.begun += usize::from(self.key && self.open.last() == Some(&Bracket::Call));
    }

    fn begin_value(&mut self, json: &mut String) {
        let keyless = self.key && self.open.last() == Some(&Bracket::Call);
        self.begin_item(json);
        if keyless {
            // One that has none has its place.
            *json += &format!("\"{}\": ", self.begun - 1);
            self.key = false;
        }
    }

    /// Ends the word that is a value, if there is one.
    fn end_value(&mut self, json: &mut String) {
        if !self.word.is_empty() {
            self.begin_value(json);
            *json += &literal(&std::mem::take(&mut self.word));
        }
    }
}

/// What `word` is in JSON, which some write in the first place; what is none of Python's literals is text.
fn literal(word: &str) -> String {
    match word {
        "True" | "true" => "true".into(),
        "False" | "false" => "false".into(),
        "None" | "null" => "null".into(),
        number if serde_json::from_str::<serde_json::Number>(number).is_ok() => number.to_owned(),
        other => {
            let digits = other.replace('_', "");
            let float = || digits.parse().ok().and_then(serde_json::Number::from_f64);
            let number = digits.parse::<i64>().map(Into::into).ok().or_else(float);
            number.map_or_else(|| Value::from(other).to_string(), |it| it.to_string())
        }
    }
}

impl Text {
    /// What is left of it behind `c`.
    fn take(mut self, c: char, json: &mut String) -> Option<Self> {
        if let Some(escape) = self.escape.take() {
            self.escape = unescaped(escape, c, json);
        } else if c == self.quote {
            json.push('"');
            return None;
        } else if c == '\\' {
            self.escape = Some(String::new());
        } else {
            *json += &escaped(c.encode_utf8(&mut [0; 4]));
        }
        Some(self)
    }
}

/// Puts into `json` what the `escape` says that goes on with `c`, or returns it where it goes on still.
fn unescaped(mut escape: String, c: char, json: &mut String) -> Option<String> {
    escape.push(c);
    let digits = match escape.as_bytes()[0] {
        b'x' => 2,
        b'u' => 4,
        b'U' => 8,
        _ => 0,
    };
    if digits > 0 && (c.is_ascii_hexdigit() || escape.len() == 1) && escape.len() <= digits {
        return Some(escape);
    }
    let code = u32::from_str_radix(escape.get(1..).unwrap_or_default(), 16);
    match (c, code.ok().filter(|_| digits > 0)) {
        // JSON's are alike, halves of a character too.
        (_, Some(_)) if digits == 4 => *json += &format!("\\{escape}"),
        (_, Some(code)) => {
            let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
            *json += &escaped(character.encode_utf8(&mut [0; 4]));
        }
        ('n' | 't' | 'r' | 'b' | 'f' | '\\' | '"', _) if digits == 0 => *json += &format!("\\{c}"),
        ('\'', _) if digits == 0 => json.push('\''),
        ('a', _) if digits == 0 => *json += "\\u0007",
        ('v', _) if digits == 0 => *json += "\\u000b",
        ('0', _) if digits == 0 => *json += "\\u0000",
        // A line that goes on.
        ('\n', _) if digits == 0 => {}
        _ => *json += &escaped(&format!("\\{escape}")),
    }
    None
}

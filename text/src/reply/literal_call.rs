//! A call, while it comes, whose arguments stand by their names and are literals: Python's, or Gemma's.

use serde_json::Value;

use super::Part;
use super::parameters::{Schemas, escaped};

/// What stands around texts of Gemma's.
pub const GEMMA_TEXT: &str = "<|\"|>";

/// `KEY=VALUE, …)`, or `KEY:VALUE,…}`: what stands behind a name and `(` or `{`, as an object of JSON.
#[derive(Debug)]
pub(super) struct LiteralCall {
    /// Whether it is Gemma's.
    gemma: bool,
    /// Names of arguments that cannot be told from what stands behind them.
    odd: Vec<String>,
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

/// In a string.
#[derive(Debug)]
struct Text {
    /// What ends it; [`GEMMA_TEXT`] if nothing else does, and then nothing in it is escaped.
    quote: Option<char>,
    /// What has come of an escape.
    escape: Option<String>,
    /// The first half of a character that two escapes are.
    half: Option<u32>,
}

impl LiteralCall {
    /// One of Python's.
    pub fn python() -> Self {
        let (string, word) = (None, String::new());
        let open = vec![Bracket::Call];
        Self { gemma: false, odd: Vec::new(), open, string, word, before: "{", key: true, begun: 0 }
    }

    /// One of Gemma's.
    pub fn gemma() -> Self {
        Self { gemma: true, ..Self::python() }
    }

    /// The same of the tool `name`, of which `schemas` may know the arguments.
    pub fn of_tool(mut self, name: &str, schemas: Option<&Schemas>) -> Self {
        let found = schemas.and_then(|all| all.iter().find(|it| it.0 == name));
        let names = found.and_then(|it| it.1["properties"].as_object());
        let names = names.into_iter().flatten().map(|it| it.0);
        self.odd = names.filter(|it| it.contains(self.ends())).cloned().collect();
        // One may begin with another.
        self.odd.sort_by_key(|it| std::cmp::Reverse(it.len()));
        self
    }

    /// What ends an argument's name.
    fn ends(&self) -> [char; 3] {
        if self.gemma { [':', ',', '}'] } else { ['=', ',', ')'] }
    }

    /// Whether all of it is there.
    pub fn is_whole(&self) -> bool {
        self.open.is_empty()
    }

    /// Takes what belongs to it from the front of `text`: so many bytes.
    pub fn push(&mut self, text: &str, parts: &mut Vec<Part>) -> usize {
        let (mut rest, mut json) = (text, String::new());
        while let Some(c) = rest.chars().next()
            && !self.is_whole()
        {
            if self.gemma && c == '<' {
                if let Some(behind) = rest.strip_prefix(GEMMA_TEXT) {
                    self.mark(&mut json);
                    rest = behind;
                    continue;
                }
                if GEMMA_TEXT.starts_with(rest) {
                    break;
                }
            }
            if self.key && self.open == [Bracket::Call] && self.string.is_none() {
                match self.odd_name(rest) {
                    Some(Some(used)) => {
                        self.begin_item(&mut json);
                        let name = &rest[..used - 1];
                        json += &format!("{}: ", Value::from(name));
                        self.key = false;
                        rest = &rest[used..];
                        continue;
                    }
                    Some(None) => break,
                    None => {}
                }
            }
            match self.string.take() {
                Some(string) => self.string = string.take(c, &mut json),
                None => self.take(c, &mut json),
            }
            rest = &rest[c.len_utf8()..];
        }
        if !json.is_empty() {
            parts.push(Part::Arguments(json));
        }
        text.len() - rest.len()
    }

    /// How much of `text` an odd name is, with the sign behind it, where an argument begins; nothing while that is not
    /// certain.
    fn odd_name(&self, text: &str) -> Option<Option<usize>> {
        let signed = |name: &String| format!("{name}{}", self.ends()[0]);
        let mut names = self.odd.iter().map(signed).filter(|_| self.word.is_empty());
        let found = names.find(|it| text.starts_with(it.as_str()) || it.starts_with(text))?;
        Some(text.starts_with(&found).then_some(found.len()))
    }

    /// A text begins or ends.
    fn mark(&mut self, json: &mut String) {
        if self.string.take().is_none() {
            self.begin_value(json);
            self.string = Some(Text { quote: None, escape: None, half: None });
        }
        json.push('"');
    }

    fn take(&mut self, c: char, json: &mut String) {
        let has_names = self.gemma || self.open == [Bracket::Call];
        let in_key = self.key && has_names && !self.word.is_empty();
        let ends = self.ends();
        match c {
            // A key may be no name of Python's.
            c if in_key && !ends.contains(&c) => self.word.push(c),
            '"' | '\'' => {
                self.begin_value(json);
                json.push('"');
                self.string = Some(Text { quote: Some(c), escape: None, half: None });
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
                    *json += &Value::from(std::mem::take(&mut self.word).trim()).to_string();
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
        let keyless = self.key && self.open.last() == Some(&Bracket::Call) && !self.gemma;
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
            *json += &of_word(std::mem::take(&mut self.word).trim());
        }
    }
}

/// What the literal `text` of Python's is in JSON, if it is one.
pub(super) fn literal(text: &str) -> Option<String> {
    let mut call = LiteralCall::python();
    let mut parts = Vec::new();
    call.push(&format!("it={text})"), &mut parts);
    let [Part::Arguments(json)] = &parts[..] else { return None };
    let object = serde_json::from_str::<Value>(json).ok().filter(|_| call.is_whole())?;
    Some(object["it"].to_string())
}

/// What `word` is in JSON, which some write in the first place; what is none of Python's literals is text.
fn of_word(word: &str) -> String {
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
        let Some(escape) = self.escape.take() else {
            match c {
                '\\' if self.quote.is_some() => self.escape = Some(String::new()),
                c if Some(c) == self.quote => {
                    self.say("", json);
                    json.push('"');
                    return None;
                }
                c => self.say(c.encode_utf8(&mut [0; 4]), json),
            }
            return Some(self);
        };
        let longer = format!("{escape}{c}");
        let (digits, radix, most) = match longer.as_bytes()[0] {
            b'x' => (&longer[1..], 16, 2),
            b'u' => (&longer[1..], 16, 4),
            b'U' => (&longer[1..], 16, 8),
            b'0'..=b'7' => (longer.as_str(), 8, 3),
            _ => {
                self.say(meant(c).unwrap_or(&format!("\\{c}")), json);
                return Some(self);
            }
        };
        let code = |digits| u32::from_str_radix(digits, radix).unwrap_or(u32::MAX);
        match c.is_digit(radix) {
            true if digits.len() == most => self.say_code(code(digits), json),
            true => self.escape = Some(longer),
            false if escape.is_empty() => self.escape = Some(longer),
            false => {
                // It ends without `c`; what has too few digits is none.
                match radix {
                    8 => self.say_code(code(&escape), json),
                    _ => self.say(&format!("\\{escape}"), json),
                }
                return self.take(c, json);
            }
        }
        Some(self)
    }

    fn say(&mut self, text: &str, json: &mut String) {
        if self.half.take().is_some() {
            json.push(char::REPLACEMENT_CHARACTER);
        }
        *json += &escaped(text);
    }

    /// Says the character `code`, or remembers it where it is the first half of one.
    fn say_code(&mut self, code: u32, json: &mut String) {
        let code = match (self.half, code) {
            (Some(first), 0xDC00..=0xDFFF) => {
                self.half = None;
                0x10000 + ((first - 0xD800) << 10) + (code - 0xDC00)
            }
            _ => code,
        };
        if (0xD800..=0xDBFF).contains(&code) {
            self.say("", json);
            self.half = Some(code);
        } else {
            let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
            self.say(character.encode_utf8(&mut [0; 4]), json);
        }
    }
}

/// What `c` means behind a backslash, if anything.
fn meant(c: char) -> Option<&'static str> {
    Some(match c {
        'n' => "\n",
        't' => "\t",
        'r' => "\r",
        'b' => "\u{8}",
        'f' => "\u{c}",
        'a' => "\u{7}",
        'v' => "\u{b}",
        '\\' => "\\",
        '"' => "\"",
        '\'' => "'",
        // A line that goes on.
        '\n' => "",
        _ => return None,
    })
}

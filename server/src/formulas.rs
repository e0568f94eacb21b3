//! Formulas in markdown, as TeX has them: `$…$`, `$$…$$`, `\(…\)` and `\[…\]`.

use std::borrow::Cow;

use comrak::nodes::NodeValue;
use comrak::{Arena, Options, parse_document};

/// `text`, with formulas escaped so that markdown leaves them as they are written.
pub(crate) fn escaped<'a>(text: &'a str, options: &Options<'_>) -> Cow<'a, str> {
    if !["$", "\\(", "\\["].iter().any(|it| text.contains(it)) {
        return text.into();
    }
    let mut escaped = String::with_capacity(text.len() * 5 / 4);
    for (piece, is_prose) in pieces(text, options) {
        match is_prose {
            true => escape(piece, &mut escaped),
            false => escaped.push_str(piece),
        }
    }
    escaped.into()
}

/// `text` in pieces, and whether they are prose: lines that are not empty, nor of a block of code.
fn pieces<'a>(text: &'a str, options: &Options<'_>) -> Vec<(&'a str, bool)> {
    let lines: Vec<_> = text.split_inclusive('\n').collect();
    let mut is_prose: Vec<_> = lines.iter().map(|it| !it.trim().is_empty()).collect();
    let arena = Arena::new();
    for node in parse_document(&arena, text, options).descendants() {
        let data = node.data();
        if let NodeValue::CodeBlock(_) | NodeValue::HtmlBlock(_) = data.value {
            let (first, last) = (data.sourcepos.start.line, data.sourcepos.end.line);
            let end = last.min(is_prose.len());
            is_prose[first.saturating_sub(1).min(end)..end].fill(false);
        }
    }
    let (mut lines, mut rest) = (lines.into_iter(), text);
    let pieces = is_prose.chunk_by(|a, b| a == b).map(|run| {
        let bytes = lines.by_ref().take(run.len()).map(str::len).sum();
        let piece;
        (piece, rest) = rest.split_at(bytes);
        (piece, run[0])
    });
    pieces.collect()
}

/// Adds `words` to `to`, with the formulas in it escaped.
fn escape(words: &str, to: &mut String) {
    // What is not closed is looked for once.
    let mut open = Vec::new();
    let mut rest = words;
    while let Some(at) = rest.find(['\\', '$', '`']) {
        to.push_str(&rest[..at]);
        rest = &rest[at..];
        let (begin, end) = match rest.as_bytes() {
            [b'`', ..] => {
                let ticks = &rest[..rest.len() - rest.trim_start_matches('`').len()];
                (ticks, ticks)
            }
            [b'\\', b'(', ..] => ("\\(", "\\)"),
            [b'\\', b'[', ..] => ("\\[", "\\]"),
            [b'$', b'$', ..] => ("$$", "$$"),
            // In an address it is one of its letters.
            [b'$', ..] if words[..words.len() - rest.len()].ends_with(['?', '&', '/', '=']) => {
                ("$", "")
            }
            [b'$', ..] => ("$", "$"),
            // Another escape.
            _ => (&rest[..1 + rest[1..].chars().next().map_or(0, char::len_utf8)], ""),
        };
        let inside = &rest[begin.len()..];
        let closed = Some(end).filter(|it| !it.is_empty() && !open.contains(it));
        let Some(length) = closed.and_then(|end| closes(inside, end)) else {
            if closed.is_some() && end != "$" {
                open.push(end);
            }
            to.push_str(begin);
            rest = inside;
            continue;
        };
        let whole = &rest[..begin.len() + length + end.len()];
        if begin.starts_with('`') {
            to.push_str(whole);
        } else {
            literal(whole, to);
        }
        rest = &rest[whole.len()..];
    }
    to.push_str(rest);
}

/// How much of `text` is before the `end` of what it is in.
fn closes(text: &str, end: &str) -> Option<usize> {
    match end {
        // As pandoc has it: between prices there is a space before the second sign, or a digit behind it.
        "$" => {
            let mut ends = text.match_indices(['$', '\n']).map(|(at, _)| at);
            let escapes =
                |at: usize| text[..at].bytes().rev().take_while(|it| *it == b'\\').count();
            let length = ends.find(|&at| escapes(at) % 2 == 0)?;
            let (inside, behind) = (&text[..length], &text[length..]);
            let behind = behind.strip_prefix('$')?;
            let is_open = |it: &str| it.is_empty() || it.starts_with(char::is_whitespace);
            let is_price = inside.ends_with(char::is_whitespace)
                || behind.starts_with(|it: char| it.is_ascii_digit());
            // Names of variables, and what markdown has of its own.
            let is_markdown = ["`", "**", "://"].iter().any(|it| inside.contains(it));
            (!is_open(inside) && !is_price && !is_markdown).then_some(length)
        }
        // No more and no fewer.
        ticks if ticks.starts_with('`') => {
            let runs = text.match_indices(ticks);
            let is_whole = |&(at, _): &(usize, &str)| {
                !text[..at].ends_with('`') && !text[at + ticks.len()..].starts_with('`')
            };
            runs.filter(is_whole).map(|(at, _)| at).next()
        }
        end => text.find(end),
    }
}

/// Adds `text` so that markdown takes it as it is, but for the quotes that lines are in.
fn literal(text: &str, to: &mut String) {
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let words = if number == 0 { line } else { line.trim_start_matches([' ', '>']) };
        to.push_str(&line[..line.len() - words.len()]);
        for char in words.chars() {
            if char.is_ascii_punctuation() {
                to.push('\\');
            }
            to.push(char);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::markdown::html;

    #[test]
    fn formulas_are_shown_as_they_are_written() {
        for formula in [
            r"$a*b*c$",
            r"$x_1$ and $x_2$",
            r"\(x_1 * y_1\)",
            r"\[ \begin{pmatrix} a & b \\ c & d \end{pmatrix} \]",
            r"$$\sum_{i=1}^n [a](https://b) `c`$$",
            r"$\$5$",
            r"$a\\$",
            r"$<b>$",
        ] {
            let shown = formula.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            assert_eq!(html(formula), format!("<p>{shown}</p>\n"));
        }
        let lines = "\\[\na\n- b_1\n= c_1 \\\\\n# d\n\\]";
        let shown = lines.replace('\n', "<br />\n");
        assert_eq!(html(lines), format!("<p>{shown}</p>\n"));
        let quoted = "> $$\n> a*b*c\n> $$";
        let shown = "<blockquote>\n<p>$$<br />\na*b*c<br />\n$$</p>\n</blockquote>\n";
        assert_eq!(html(quoted), shown);
        assert!(html("| a |\n|---|\n| $a*b*c$ |").contains("<td>$a*b*c$</td>"));
    }

    #[test]
    fn what_is_no_formula_is_markdown() {
        for (text, expected) in [
            ("$5 *and* $6", "<p>$5 <em>and</em> $6</p>\n"),
            ("US$5 *and* CA$6", "<p>US$5 <em>and</em> CA$6</p>\n"),
            ("$5\n*and*$", "<p>$5<br />\n<em>and</em>$</p>\n"),
            (r"\(a *b*", "<p>(a <em>b</em></p>\n"),
            (r"\$ *a* \*", "<p>$ <em>a</em> *</p>\n"),
            ("`$a` *b* `$`", "<p><code>$a</code> <em>b</em> <code>$</code></p>\n"),
            (r"``a ` \(b\)``", "<p><code>a ` \\(b\\)</code></p>\n"),
            ("```\n$a$\n\n$b$", "<pre><code>$a$\n\n$b$</code></pre>\n"),
            ("    $a$", "<pre><code>$a$\n</code></pre>\n"),
            ("$$a\n\n*b*$$", "<p>$$a</p>\n<p><em>b</em>$$</p>\n"),
            ("Use $PATH, not `$HOME`.", "<p>Use $PATH, not <code>$HOME</code>.</p>\n"),
            ("**$A** and **$B**", "<p><strong>$A</strong> and <strong>$B</strong></p>\n"),
            (
                "<https://a.b/c?$d=e&$f=5>",
                "<p><a href=\"https://a.b/c?$d=e&amp;$f=5\">https://a.b/c?$d=e&amp;$f=5</a></p>\n",
            ),
        ] {
            assert_eq!(html(text), expected);
        }
        let list = html("- a\n\n      $b_1$\n\n  $*c*$\n");
        assert!(list.contains("<code>$b_1$\n</code>") && list.contains("<p>$*c*$</p>"), "{list}");
    }
}

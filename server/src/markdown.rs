//! Markdown as HTML that holds nothing of the writer's own: what a model writes is shown, never run.

use comrak::nodes::{NodeCodeBlock, NodeLink, NodeValue};
use comrak::{Arena, Node, Options, format_html, parse_document};

use crate::formulas;

/// What links may lead to. Others are shown as their text.
const SCHEMES: [&str; 3] = ["http:", "https:", "mailto:"];

/// `text`, written in GitHub's markdown, as HTML.
///
/// Tags and formulas in it are shown as they are written, images are links to them, since nothing is fetched from
/// elsewhere, and links have an address of [`SCHEMES`].
pub(crate) fn html(text: &str) -> String {
    let mut options = Options::default();
    options.extension.autolink = true;
    options.extension.strikethrough = true;
    options.extension.table = true;
    options.extension.tasklist = true;
    // In a conversation a new line is meant as one.
    options.render.hardbreaks = true;
    // Neither is needed behind `disarm`; both would hold without it.
    options.render.escape = true;
    options.render.r#unsafe = false;
    let text = formulas::escaped(text, &options);
    let arena = Arena::new();
    let document = parse_document(&arena, &text, &options);
    for node in document.descendants().collect::<Vec<_>>() {
        disarm(node, &arena);
    }
    let mut html = String::with_capacity(text.len() * 3 / 2);
    format_html(document, &options, &mut html).expect("a string takes all");
    html
}

fn disarm<'a>(node: Node<'a>, arena: &'a Arena<'a>) {
    let mut data = node.data_mut();
    match &mut data.value {
        NodeValue::HtmlBlock(block) => {
            let block = NodeCodeBlock {
                fenced: true,
                info: "html".into(),
                literal: std::mem::take(&mut block.literal),
                closed: true,
                ..NodeCodeBlock::default()
            };
            data.value = NodeValue::CodeBlock(Box::new(block));
        }
        NodeValue::HtmlInline(tag) => {
            data.value = NodeValue::Text(std::mem::take(tag).into());
        }
        NodeValue::Link(link) | NodeValue::Image(link) if leads_out(&link.url) => {
            let NodeLink { url, title } = std::mem::take(&mut **link);
            let address = NodeValue::Text(url.clone().into());
            data.value = NodeValue::Link(Box::new(NodeLink { url, title }));
            drop(data);
            // HTML has no links in links.
            let is_link =
                |it: &Node<'_>| matches!(it.data().value, NodeValue::Link(_) | NodeValue::Image(_));
            let inner: Vec<_> = node.descendants().skip(1).filter(is_link).collect();
            inner.into_iter().for_each(unwrap);
            if node.first_child().is_none() {
                node.append(arena.alloc(address.into()));
            }
        }
        NodeValue::Link(_) | NodeValue::Image(_) => {
            drop(data);
            unwrap(node);
        }
        _ => {}
    }
}

/// Leaves what is in `node` in its place.
fn unwrap(node: Node<'_>) {
    for child in node.children().collect::<Vec<_>>() {
        node.insert_before(child);
    }
    node.detach();
}

fn leads_out(url: &str) -> bool {
    let begins = |scheme: &&str| {
        url.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    };
    SCHEMES.iter().any(begins)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::html;

    #[test]
    fn what_people_write_is_rendered() {
        for (text, expected) in [
            ("# A *b*", "<h1>A <em>b</em></h1>\n"),
            ("a\nb", "<p>a<br />\nb</p>\n"),
            ("~~a~~ `<b>`", "<p><del>a</del> <code>&lt;b&gt;</code></p>\n"),
            (
                "```rust x\nlet a;\n```",
                "<pre><code class=\"language-rust\">let a;\n</code></pre>\n",
            ),
            ("[a](https://b.c 'd')", "<p><a href=\"https://b.c\" title=\"d\">a</a></p>\n"),
            ("![a](HTTP://b.c/d)", "<p><a href=\"HTTP://b.c/d\">a</a></p>\n"),
            ("![](https://b.c)", "<p><a href=\"https://b.c\">https://b.c</a></p>\n"),
            ("[![a](https://b.c)](https://d.e)", "<p><a href=\"https://d.e\">a</a></p>\n"),
            ("[![](https://b.c)](https://d.e)", "<p><a href=\"https://d.e\">https://d.e</a></p>\n"),
            ("![a [b](https://c.d)](https://e.f)", "<p><a href=\"https://e.f\">a b</a></p>\n"),
            ("1 < 2 & 3", "<p>1 &lt; 2 &amp; 3</p>\n"),
        ] {
            assert_eq!(html(text), expected);
        }
        assert!(html("| a | b |\n|---|--:|\n| 1 | 2 |").contains("<td align=\"right\">2</td>"));
        assert!(html("- [x] a").contains("<input type=\"checkbox\" checked"));
        assert!(html("see https://a.b").contains("<a href=\"https://a.b\">"));
    }

    #[test]
    fn nothing_that_is_written_runs() {
        for text in [
            "<script>alert(1)</script>",
            "a <script>alert(1)</script> b",
            "<img src=x onerror=alert(1)>",
            "a <img src=x onerror=alert(1)>",
            "<svg/onload=alert(1)>",
            "[x](javascript:alert(1))",
            "[x](JaVaScRiPt:alert(1))",
            "[x](&#106;avascript:alert(1))",
            "[x](java&Tab;script:alert(1))",
            "[x](\u{1}javascript:alert(1))",
            "[x](data:text/html,<script>alert(1)</script>)",
            "![x](data:image/png;base64,AAAA)",
            "![x](javascript:alert(1))",
            "[![x](javascript:alert(1))](javascript:alert(2))",
            "[x][1]\n\n[1]: javascript:alert(1)",
            "[x](//evil.example)",
            "<javascript:alert(1)>",
            "[x](https://a \"\\\" onclick=alert(1) \\\"\")",
            "```\"><script>alert(1)</script>\nx\n```",
            "| <script>alert(1)</script> |\n|---|",
            "$<script>alert(1)</script>$",
            "\\[\n<script>alert(1)</script>\n\\]",
        ] {
            let found = html(text);
            // What is left of tags and attributes, when text is taken away.
            let tags: Vec<_> =
                found.split('<').skip(1).map(|it| it.split('>').next().unwrap()).collect();
            for tag in tags {
                let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
                let known = ["p", "a", "code", "pre", "br", "table", "thead", "tr", "th"];
                assert!(known.contains(&name), "{text}: {found}");
                // Quotes of a text are `&quot;`: what stands between quotes is one value.
                for attribute in tag.split('"').step_by(2) {
                    let attribute = attribute.trim_start_matches(name).trim();
                    let known = ["", "href=", "title=", "class=", "/a", "/code", "/", "/p"];
                    let known = known.contains(&attribute) || tag.starts_with('/');
                    assert!(known, "{text}: {attribute:?} in {found}");
                }
                assert!(!tag.contains("href") || tag.contains("href=\"https://"), "{found}");
            }
        }
    }

    #[test]
    fn hostile_text_takes_no_time() {
        let size = 64 << 10;
        for piece in [
            "[",
            "]",
            "[](",
            "[a](<b",
            "![",
            "*",
            "**a ",
            "_",
            "*a_ ",
            "~",
            "`",
            "``a`",
            ">",
            "> ",
            "- ",
            "1. ",
            "\t",
            "<",
            "<a ",
            "<!--",
            "&",
            "\\",
            "|",
            "|-",
            "|a|\n",
            "#",
            "a@b.",
            "www.",
            "http://a",
            "[a]: b\n",
            "[a][",
            "- [ ] ",
            "\n",
            "```\n",
            "<div>\n",
            "![a](b",
            "(",
            "\"",
            "$",
            "$$ ",
            "\\\\$",
            "$a ",
            "\\(",
            "\\[ \\)",
            "[![](http://a",
            "![![a](http://b)",
        ] {
            let text = piece.repeat(size / piece.len());
            let start = Instant::now();
            html(&text);
            let took = start.elapsed();
            assert!(took < Duration::from_secs(10), "{piece:?}: {took:?}");
        }
    }
}

//! Dispatches as what one thread does for one element of the result, and sums as it adds them up: in one order,
//! whatever else is in a step.

use super::Function;
use crate::emit::builder::{Generic, Value};

/// How many sums run beside each other, so that one does not wait for the last.
const BESIDE: usize = 8;

/// `%total`: the sum of `extent` terms, f32. `term` writes what makes `%term<i>` of the index `%k<i>`.
///
/// Term `k` goes to sum `k % 8`, and these are added in pairs: one order for all that is summed.
pub fn sum(extent: usize, term: &dyn Fn(&str) -> String) -> String {
    sum_named("", extent, term)
}

/// The same of one of several sums of a thread: `%total<name>`, and `name` ends whatever it calls something.
pub fn sum_named(name: &str, extent: usize, term: &dyn Fn(&str) -> String) -> String {
    let whole = extent / BESIDE * BESIDE;
    let list =
        |write: &dyn Fn(usize) -> String| (0..BESIDE).map(write).collect::<Vec<_>>().join(", ");
    let mut text = format!(
        "%none{name} = arith.constant 0.0 : f32
         %from{name} = arith.constant 0 : index
         %by{name} = arith.constant {BESIDE} : index
         %whole{name} = arith.constant {whole} : index
         %sums{name}:{BESIDE} = scf.for %at{name} = %from{name} to %whole{name} step %by{name} \
         iter_args({}) -> ({}) {{\n",
        list(&|i| format!("%so_far{i}{name} = %none{name}")),
        list(&|_| "f32".into()),
    );
    for i in 0..BESIDE {
        let id = format!("{i}{name}");
        text += &format!(
            "%behind{id} = arith.constant {i} : index
             %k{id} = arith.addi %at{name}, %behind{id} : index
             {}
             %next{id} = arith.addf %so_far{id}, %term{id} : f32\n",
            term(&id)
        );
    }
    text += &format!(
        "scf.yield {} : {}\n}}\n",
        list(&|i| format!("%next{i}{name}")),
        list(&|_| "f32".into())
    );
    let mut sums: Vec<_> = (0..BESIDE).map(|i| format!("%sums{name}#{i}")).collect();
    for (k, sum) in (whole..extent).zip(&mut sums) {
        let id = format!("{}{name}", BESIDE + k - whole);
        text += &format!(
            "%k{id} = arith.constant {k} : index
             {}
             %last{id} = arith.addf {sum}, %term{id} : f32\n",
            term(&id)
        );
        *sum = format!("%last{id}");
    }
    for (round, called) in ["%pair", "%four", "%total"].into_iter().enumerate() {
        let pairs = sums.chunks(2).enumerate();
        let added = |(at, pair): (usize, &[String])| {
            let at = if round == 2 { String::new() } else { at.to_string() };
            let result = format!("{called}{at}{name}");
            (format!("{result} = arith.addf {}, {} : f32\n", pair[0], pair[1]), result)
        };
        let (lines, names): (Vec<_>, Vec<_>) = pairs.map(added).unzip();
        text += &lines.concat();
        sums = names;
    }
    text
}

/// The loop nest of one thread for each element of the result, whose place is `names` in `body`;
/// `body` yields it.
pub fn threads(f: &mut Function<'_>, names: &[&str], into: &Value, body: &str) -> Value {
    several_by_threads(f, names, &[into], body).remove(0)
}

/// The same of several results, of as many elements each.
pub fn several_by_threads(
    f: &mut Function<'_>,
    names: &[&str],
    into: &[&Value],
    body: &str,
) -> Vec<Value> {
    let loops = names.join(",");
    let indices = names.iter().enumerate();
    let indices: String =
        indices.map(|(at, name)| format!("%{name} = linalg.index {at} : index\n")).collect();
    let nest = Generic {
        loops: &loops,
        inputs: &[],
        result: &loops,
        body: &format!("{indices}{body}"),
        config: None,
    };
    f.b.generics(&nest, into)
}

//! Sums as one thread adds them up.

/// How many sums run beside each other, so that one does not wait for the last.
const BESIDE: usize = 8;

/// `%total`: the sum of `extent` terms, f32. `term` writes what makes `%term<i>` of the index `%k<i>`.
///
/// Term `k` goes to sum `k % 8`, and these are added in pairs: one order for all that is summed.
pub(super) fn sum(extent: usize, term: &dyn Fn(usize) -> String) -> String {
    let whole = extent / BESIDE * BESIDE;
    let list =
        |write: &dyn Fn(usize) -> String| (0..BESIDE).map(write).collect::<Vec<_>>().join(", ");
    let mut text = format!(
        "%none = arith.constant 0.0 : f32
         %from = arith.constant 0 : index
         %by = arith.constant {BESIDE} : index
         %whole = arith.constant {whole} : index
         %sums:{BESIDE} = scf.for %at = %from to %whole step %by iter_args({}) -> ({}) {{\n",
        list(&|i| format!("%so_far{i} = %none")),
        list(&|_| "f32".into()),
    );
    for i in 0..BESIDE {
        text += &format!(
            "%behind{i} = arith.constant {i} : index
             %k{i} = arith.addi %at, %behind{i} : index
             {}
             %next{i} = arith.addf %so_far{i}, %term{i} : f32\n",
            term(i)
        );
    }
    text += &format!(
        "scf.yield {} : {}\n}}\n",
        list(&|i| format!("%next{i}")),
        list(&|_| "f32".into())
    );
    let mut sums: Vec<_> = (0..BESIDE).map(|i| format!("%sums#{i}")).collect();
    for (k, sum) in (whole..extent).zip(&mut sums) {
        let i = BESIDE + k - whole;
        text += &format!(
            "%k{i} = arith.constant {k} : index
             {}
             %last{i} = arith.addf {sum}, %term{i} : f32\n",
            term(i)
        );
        *sum = format!("%last{i}");
    }
    for (round, name) in ["%pair", "%four", "%total"].into_iter().enumerate() {
        let pairs = sums.chunks(2).enumerate();
        let added = |(at, pair): (usize, &[String])| {
            let name = if round == 2 { name.to_owned() } else { format!("{name}{at}") };
            (format!("{name} = arith.addf {}, {} : f32\n", pair[0], pair[1]), name)
        };
        let (lines, names): (Vec<_>, Vec<_>) = pairs.map(added).unzip();
        text += &lines.concat();
        sums = names;
    }
    text
}

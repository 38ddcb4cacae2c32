//! What a name may have been meant to be.

/// The longest name that is looked for, in bytes: hostile ones cost nothing.
pub(crate) const LONGEST: usize = 32;

/// Letters to add, drop or exchange, so that `name` becomes `known`.
pub(crate) fn distance(name: &str, known: &str) -> usize {
    let mut row: Vec<usize> = (0..=known.len()).collect();
    for (at, letter) in name.bytes().enumerate() {
        let mut before = std::mem::replace(&mut row[0], at + 1);
        for (to, other) in known.bytes().enumerate() {
            let exchanged = before + usize::from(letter != other);
            before = row[to + 1];
            row[to + 1] = exchanged.min(before + 1).min(row[to] + 1);
        }
    }
    row[known.len()]
}

/// At most three of `known`, the nearest first, that `name` is at most so many letters from, and not as many as it has; separated by commas.
pub(crate) fn nearest<'k>(name: &str, known: impl Iterator<Item = &'k str>, most: usize) -> String {
    if name.len() > LONGEST {
        return String::new();
    }
    let most = most.min(name.len().saturating_sub(1));
    let mut found: Vec<(usize, &str)> = known.map(|known| (distance(name, known), known)).collect();
    found.retain(|(distance, _)| *distance <= most);
    found.sort_by_key(|(distance, _)| *distance);
    found.into_iter().take(3).map(|(_, known)| known).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_come_first() {
        assert_eq!((distance("fpext", "extf"), distance("addf", "addf"), distance("", "or")), (3, 0, 2));
        let known = || ["subf", "addi", "addf", "andi", "mulf"].into_iter();
        assert_eq!(nearest("add", known(), 3), "addi, addf, andi");
        assert_eq!(nearest("adf", known(), 1), "addf");
        // As many letters as there are, and hostile names.
        assert_eq!(nearest("xy", known(), 3), "");
        assert_eq!(nearest(&"a".repeat(40), known(), 99), "");
    }
}

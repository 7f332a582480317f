//! A block of README that a bench writes, between `<!-- name:begin -->` and `<!-- name:end -->`.

use anyhow::{Context, Result};
use e2e::bootstrap::root;

/// Replaces the block `name` of README.
pub fn write_block(name: &str, block: &str) -> Result<()> {
    let path = root().join("README.md");
    let text = std::fs::read_to_string(&path)?;
    std::fs::write(&path, replaced(&text, name, block)?)?;
    Ok(())
}

fn replaced(text: &str, name: &str, block: &str) -> Result<String> {
    let (begin, end) = (
        format!("<!-- {name}:begin -->"),
        format!("<!-- {name}:end -->"),
    );
    let (before, rest) = text.split_once(&begin).with_context(|| begin.clone())?;
    let (_, after) = rest.split_once(&end).with_context(|| end.clone())?;
    Ok(format!(
        "{before}{begin}\n{}\n{end}{after}",
        block.trim_end()
    ))
}

#[cfg(test)]
mod tests {
    use super::replaced;

    #[test]
    fn a_block_is_replaced_and_nothing_else() {
        let text = "a\n<!-- x:begin -->\nold\n<!-- x:end -->\nb\n";
        let new = replaced(text, "x", "new\n").expect("both markers");
        assert_eq!(new, "a\n<!-- x:begin -->\nnew\n<!-- x:end -->\nb\n");
        assert!(replaced(text, "y", "new").is_err());
    }
}

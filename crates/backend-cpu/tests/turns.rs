use loom_compiler::Module;
use loom_compiler::tile::compile;
use std::collections::BTreeMap;
#[test]
fn dump() {
    let text = std::fs::read_to_string(std::env::var("DUMP").unwrap()).unwrap();
    let module = Module::parse("bench", &text).unwrap_or_else(|e| panic!("{e}"));
    let name = module.kernels().remove(0);
    let config: BTreeMap<_, _> = [("columns".to_owned(), "512".to_owned())].into_iter().collect();
    let kernel = module.specialise(&name, &config).unwrap_or_else(|e| panic!("{e}"));
    let image = compile(&kernel).unwrap();
    let p = image.program();
    println!("{:?} many {} cap {} items {} frame {}", p.shape, p.many_segments, p.capacity, p.items, p.frame_bytes);
    println!("{:?}", p.prologue);
    for (i, b) in p.blocks.iter().enumerate() {
        println!("block {i}");
        for inst in b {
            println!("   {inst:?}");
        }
    }
}

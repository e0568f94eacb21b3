//! What modules say of themselves beside their functions.

use crate::support::parameters::program;
use crate::support::{compile, kinds, module, session};
use iree_rt::{CompileOptions, Module};

const PROGRAM: &str = r#"
module @reflected {
  func.func private @host.add(i32, i32) -> i32
  func.func @run(%a: i32, %b: tensor<2xf32> {iree.abi.name = "scale"})
      -> (i32, tensor<2xf32> {iree.abi.name = "scaled"})
      attributes {iree.reflection = {"model.author" = "Ada", "model.license" = "none"}} {
    %0 = call @host.add(%a, %a) : (i32, i32) -> i32
    return %0, %b : i32, tensor<2xf32>
  }
}"#;

fn reflected() -> Module {
    module(&compile(PROGRAM, &CompileOptions::default()))
}

#[test]
fn attributes_of_functions_are_by_name() {
    let functions = reflected().functions().unwrap();
    let [run] = &functions[..] else { panic!("{functions:?}") };
    assert_eq!(run.attributes["model.author"], "Ada");
    assert_eq!(run.attributes["model.license"], "none");
    assert_eq!(run.attributes["iree.abi.declaration"], run.declaration());
    assert!(run.declaration().contains("@run"), "{run:?}");
    let shown = "run(i32, scale: tensor<2xf32>) -> (i32, scaled: tensor<2xf32>)";
    assert_eq!(run.to_string(), shown);

    let session = session("local-sync");
    let step = session.function("kinds.step").unwrap();
    let of_module = session.modules()[0].functions().unwrap();
    let same = of_module.iter().find(|it| it.name == "step").unwrap();
    assert_eq!(step.attributes(), &same.attributes);
    // IREE 3.13's compiler writes none beside modules.
    assert!(reflected().attributes().is_empty());
}

#[test]
fn imports_and_dependencies_are_listed() {
    let imports = reflected().imports().unwrap();
    let of_host: Vec<_> = imports.iter().filter(|it| it.name.starts_with("host.")).collect();
    let [add] = of_host[..] else { panic!("{imports:?}") };
    assert_eq!(add.to_string(), "host.add(i32, i32) -> (i32)");
    assert!(!add.is_optional);
    assert!(imports.iter().all(|it| it.name.contains('.')), "{imports:?}");
    let imports = module(kinds()).imports().unwrap();
    let of_hal = imports.iter().find(|it| it.name == "hal.buffer_view.assert").unwrap();
    assert_eq!(of_hal.to_string(), "hal.buffer_view.assert(ref, ref, i32, i32, i64) -> ()");

    let names = |module: Module| {
        let all = module.dependencies().unwrap();
        all.into_iter().filter(|it| !it.is_optional).map(|it| it.name).collect::<Vec<_>>()
    };
    assert!(names(reflected()).contains(&"host".to_owned()));
    assert!(names(module(kinds())).contains(&"hal".to_owned()));
    assert!(!names(module(kinds())).contains(&"io_parameters".to_owned()));
    assert!(names(program()).contains(&"io_parameters".to_owned()));
}

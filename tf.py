
import torch_opaque,torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests,ops,dtypes,onlyOn
import torch.testing._internal.common_device_type as cd
from torch.testing._internal.common_utils import TestCase,run_tests
from torch.testing._internal.common_methods_invocations import op_db
class T(TestCase):
    def test_a(self,device): self.assertEqual((torch.ones(2,device=device)+1).cpu(),torch.full((2,),2.)); self.assertEqual(torch.ones(2,device=device),torch.ones(2,device=device)); assert "opaque" in device
    @dtypes(torch.float32,torch.bfloat16)
    def test_b(self,device,dtype): torch.ones(2,device=device,dtype=dtype)
    @ops([o for o in op_db if o.name in ("add","mm","sin","slice_scatter")],allowed_dtypes=(torch.float32,))
    def test_c(self,device,dtype,op):
        for s in op.sample_inputs(device,dtype): op(s.input,*s.args,**s.kwargs)
instantiate_device_type_tests(T,globals(),only_for=("opaque",))
print([n for n in globals() if n.startswith("T")], [x for x in dir(cd) if "rivate" in x or "allow" in x or "test_config" in x], [x for x in dir(cd.PrivateUse1TestBase) if not x.startswith("_") and x in ("set_test_configs","op_allowlist","op_overrides","test_exclusions","setUpClass","get_primary_device","instantiate_test")])
run_tests()

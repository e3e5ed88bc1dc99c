"""Names of rltrace's insides, wherever their modules stand: what its own tests import.

No promise to anybody else. A module that moves is named anew here, and no test notices; what only a
module's own test asks for is imported there. One module a floor.
"""

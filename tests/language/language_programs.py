"""The language inside a capture: small programs, each f(x, state), by subject."""

import class_programs
import container_programs
import control_flow_programs
import effect_programs
import function_programs
import library_programs

PROGRAMS = [
    *control_flow_programs.PROGRAMS,
    *class_programs.PROGRAMS,
    *container_programs.PROGRAMS,
    *function_programs.PROGRAMS,
    *library_programs.PROGRAMS,
    *effect_programs.PROGRAMS,
]
